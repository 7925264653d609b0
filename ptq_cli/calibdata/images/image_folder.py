"""A folder of images, with or without one subfolder for each class."""

from collections.abc import Generator

import numpy as np
import numpy.typing as npt

from ptq_cli.calibdata.dataset.batch import Batch
from ptq_cli.calibdata.dataset.dataset import ANONYMOUS, Dataset
from ptq_cli.calibdata.dataset.file_names import escaped_name
from ptq_cli.calibdata.dataset.selection import Selection
from ptq_cli.calibdata.images.checked_settings import (
    CHANNELS,
    check_image_settings,
    fixed_size,
    image_spec,
    resized,
)
from ptq_cli.calibdata.images.image_decoding import decode_image, image_size
from ptq_cli.calibdata.images.listing import digest_listing, list_images
from ptq_cli.calibdata.images.normalizing import normalize, require_size_of_first
from ptq_cli.core.tensors import Array
from ptq_cli.recipe.sections.input_sections import ImageSettings


class ImageDataset(Dataset):
    """The images of a folder as float32 arrays, in the order of ``list_images``.

    Raises:
        RecipeValueError: a setting cannot be used.
        EmptyDataError, DataFormatError, InputFileError: as raised by ``list_images``.
        DamagedSampleError: the first image, whose size may be needed, is damaged.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> folder = tempfile.mkdtemp()
        >>> Image.new("RGB", (4, 4)).save(folder + "/black.png")
        >>> str(ImageDataset(folder, ImageSettings(resize=[2, 3])).specs[""])
        ': float32[?, 3, 2, 3]'
    """

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
