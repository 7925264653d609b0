"""Which images a folder holds, in which order. Only folders are listed; no file is opened."""

import hashlib
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass

from ptq_cli.calibdata.dataset.file_names import SUFFIXES, escaped_name, is_image
from ptq_cli.core.errors import DataFormatError, EmptyDataError, InputFileError

_NO_CLASSES = ("__MACOSX",)
"""Folders that archivers leave behind; taken for classes, they would shift every label."""


@dataclass(frozen=True)
class ImageListing:
    """The images of a folder.

    Attributes:
        names: paths relative to the folder, with forward slashes.
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

    Raises:
        EmptyDataError: there are no images.
        DataFormatError: images lie both beside and in subfolders, or a link is refused.
        InputFileError: a folder cannot be listed.

    Example:
        >>> import pathlib, tempfile
        >>> root = pathlib.Path(tempfile.mkdtemp())
        >>> for name in ("cat/1.jpg", "cat/2.jpg", "dog/1.jpg"):
        ...     (root / name).parent.mkdir(exist_ok=True)
        ...     (root / name).touch()
        >>> listing = list_images(str(root))
        >>> listing.names, listing.labels, listing.class_names
        (['cat/1.jpg', 'dog/1.jpg', 'cat/2.jpg'], [0, 1, 0], ('cat', 'dog'))
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

    Edge case:
        If a file's content changed but not its size or name, the digest stays the same: reading every image
        of a large folder to compute it would take as long as calibrating.

    Raises:
        InputFileError: a file is gone.
    """
    digest = hashlib.sha256()
    for name in sorted(names):
        try:
            size = os.stat(f"{root}/{name}").st_size  # noqa: PTH116 - a Path for each of a million files is slow
        except OSError as error:
            raise InputFileError(
                f"image '{escaped_name(name)}' cannot be read: {error.strerror}",
                hint="check the file and its permissions",
            ) from error
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
