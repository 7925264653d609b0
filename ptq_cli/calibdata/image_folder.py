"""A folder of images, with or without one subfolder for each class: its listing, and its samples."""

import hashlib
import itertools
import os
from collections.abc import Generator, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ptq_cli.calibdata.dataset.batches import Batch, Selection
from ptq_cli.calibdata.dataset.data_files import SUFFIXES, escaped_name, is_image, unreadable
from ptq_cli.calibdata.dataset.dataset import ANONYMOUS, Dataset
from ptq_cli.calibdata.image_decoding import (
    CHANNELS,
    check_image_settings,
    decode_image,
    fixed_size,
    image_size,
    image_spec,
    normalize,
    require_size_of_first,
    resized,
)
from ptq_cli.core.errors import DataFormatError, EmptyDataError, InputFileError
from ptq_cli.core.tensors import Array
from ptq_cli.recipe.sections import ImageSettings

_NO_CLASSES = ("__MACOSX",)  # archivers leave it behind; as a class it would shift labels


@dataclass(frozen=True)
class ImageListing:
    """The images of a folder.

    Attributes:
        labels: index of each image's class; empty without class folders.
        class_names: sorted names of the class folders; empty without class folders.
    """

    names: list[str]
    labels: list[int]
    class_names: tuple[str, ...]


def list_images(root: str) -> ImageListing:
    """List the images of a folder.

    If the images lie in subfolders, each subfolder is a class, even an empty one, so that the labels do not
    depend on which images were picked. Images deeper inside a class folder belong to that class.
    The order is the first image of each class, then the second of each, and so on, each class sorted by
    name, so that the first N samples are spread over the classes. Without subfolders the order is by name.

    Hidden files and files with other suffixes are ignored. A link to an image inside the folder is followed;
    a link that leaves the folder, and any link to a folder, is refused.
    """
    real_root = os.path.realpath(root)
    top, folders = _scan(root, "", real_root)
    classes = sorted(name for name in folders if name not in _NO_CLASSES)
    members = [sorted(_walk(root, name, real_root)) for name in classes]
    nested = next((names[0] for names in members if names), None)
    if top and nested is not None:
        raise DataFormatError(
            f"folder '{root}' has images both beside and in subfolders: '{min(top)}' and '{nested}'",
            hint="put every image into a class folder, or all images into one folder",
        )
    if top:
        return ImageListing(sorted(top), [], ())
    if nested is None:
        raise EmptyDataError(
            f"folder '{root}' holds no images, .npz files, tar shards or Parquet files",
            hint=f"suffixes of images: {' '.join(SUFFIXES)}",
        )
    turns = itertools.zip_longest(*members)
    order = [(name, label) for turn in turns for label, name in enumerate(turn) if name is not None]
    return ImageListing([name for name, _ in order], [label for _, label in order], tuple(classes))


def digest_listing(root: str, names: list[str]) -> str:
    """SHA-256 of the images' names and sizes, in hexadecimal; no file is opened.

    If a file's content changed but not its size or name, the digest stays the same: reading every image of a
    large folder to compute it would take as long as calibrating.
    """
    digest = hashlib.sha256()
    for name in sorted(names):
        try:
            size = os.stat(f"{root}/{name}").st_size  # noqa: PTH116 - a Path for each of a million files is slow
        except OSError as error:
            raise unreadable(f"image '{escaped_name(name)}'", error) from error
        # The length of the name comes first, so that two different listings never give the same bytes.
        encoded = os.fsencode(name)
        digest.update(b"%d:%s:%d\n" % (len(encoded), encoded, size))
    return digest.hexdigest()


def _walk(root: str, folder: str, real_root: str) -> Iterator[str]:
    pending = [folder]
    while pending:
        folder = pending.pop()
        names, folders = _scan(root, folder, real_root)
        yield from names
        pending += folders


def _scan(root: str, folder: str, real_root: str) -> tuple[list[str], list[str]]:
    names, folders = [], []
    prefix = f"{folder}/" if folder else ""
    try:
        with os.scandir(f"{root}/{folder}") as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                name = prefix + entry.name
                if entry.is_symlink():
                    if _is_allowed_link(entry, name, root, real_root):
                        names.append(name)
                elif entry.is_dir():
                    folders.append(name)
                elif is_image(entry.name):
                    names.append(name)
    except OSError as error:
        raise InputFileError(
            f"folder '{escaped_name(prefix or root)}' cannot be listed: {error.strerror}",
            hint="check its permissions",
        ) from error
    return names, folders


def _is_allowed_link(entry: os.DirEntry[str], name: str, root: str, real_root: str) -> bool:
    if entry.is_dir():
        raise DataFormatError(
            f"'{escaped_name(name)}' of '{root}' is a link to a folder, which is not followed",
            hint="links to folders can form cycles; move or copy the folder there",
        )
    if not is_image(entry.name):
        return False
    target = os.path.realpath(entry.path)
    if not target.startswith(os.path.join(real_root, "")):  # noqa: PTH118 - adds the separator only where missing
        raise DataFormatError(
            f"'{escaped_name(name)}' of '{root}' is a link that leaves the folder",
            hint="copy the image into the folder",
        )
    return True


class ImageDataset(Dataset):
    """The images of a folder as float32 arrays, in the order of ``list_images``."""

    def __init__(self, source: str, settings: ImageSettings, samples: int | None = None) -> None:
        check_image_settings(settings)
        listing = list_images(source)
        self.source = source
        self.class_names = listing.class_names
        self.has_labels = bool(listing.class_names)
        self._settings = settings
        self._all_names = listing.names
        self._names = listing.names[:samples]
        self._labels = np.array(listing.labels[:samples], np.int64)
        self.count: int = len(self._names)
        self._size = fixed_size(settings) or self._size_of_first()
        self.specs = {ANONYMOUS: image_spec(ANONYMOUS, self._size, settings)}

    def digest(self) -> str:
        """SHA-256 of the names and file sizes of all images of the folder; no image is opened."""
        return digest_listing(self.source, self._all_names)

    def _stream(self, batch_size: int, selection: Selection) -> Generator[Batch]:
        channels = CHANNELS[self._settings.mode]
        pixels = np.empty((min(batch_size, self.count), *self._size, channels), np.uint8)
        for number, start in enumerate(range(0, self.count, batch_size)):
            if number not in selection:
                continue
            names = self._names[start : start + batch_size]
            for row, name in enumerate(names):
                self._decode(name, pixels[row])
            labels = self._labels[start : start + batch_size] if self.has_labels else None
            arrays: dict[str, Array] = {ANONYMOUS: normalize(pixels[: len(names)], self._settings)}
            yield Batch(arrays, labels, tuple(escaped_name(name) for name in names))

    def _decode(self, name: str, row: npt.NDArray[np.uint8]) -> None:
        image = decode_image(f"{self.source}/{name}", self._where(name), self._settings)
        first = escaped_name(self._names[0])
        require_size_of_first(image.shape, row.shape, escaped_name(name), first, self.source)
        row[...] = image.reshape(row.shape)

    def _where(self, name: str) -> str:
        return f"image '{escaped_name(name)}' of '{self.source}'"

    def _size_of_first(self) -> tuple[int, int]:
        first = self._names[0]
        size = image_size(f"{self.source}/{first}", self._where(first))
        return resized(size, self._settings.resize, self._where(first))
