"""Turn one encoded image into pixels: decode, convert, resize, crop.

The EXIF orientation is not applied: torchvision, timm and TensorFlow train without it, and calibration must
use the same images as training. Resizing is Pillow's bilinear filter with antialiasing, torchvision's
default for images.
"""

import io
import os
from collections.abc import Generator

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from ptq_cli.calibdata.checked_settings import (
    CHANNELS,
    MAX_PIXELS,
    check_image_settings,
    crop_box,
    digest_listing,
    fixed_size,
    image_spec,
    list_images,
    normalize,
    require_size_of_first,
    resized,
)
from ptq_cli.calibdata.dataset.batches import Batch, Selection
from ptq_cli.calibdata.dataset.data_files import escaped_name, unreadable
from ptq_cli.calibdata.dataset.dataset import ANONYMOUS, Dataset
from ptq_cli.core.errors import DamagedSampleError, DataFormatError, PtqError
from ptq_cli.core.tensors import Array
from ptq_cli.recipe.sections import ImageSettings

# Decoders that run no other program (EPS would start Ghostscript), whatever the file's suffix says.
_FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "PPM", "TIFF", "GIF")


def decode_image(path: str, name: str, settings: ImageSettings) -> npt.NDArray[np.uint8]:
    """Return an image's pixels after mode, resize and crop; BGR is still RGB here.

    Messages begin with ``name``, such as ``"image 'cat/1.jpg' of 'calib'"``. The first frame of an animated
    image is used; an alpha channel is dropped.

    Shapes:
        result: ``(height, width, 3)``, or ``(height, width)`` for mode ``L``.

    Units:
        0 to 255.
    """
    return decode_bytes(_read(path, name), name, settings)


def decode_bytes(content: bytes, name: str, settings: ImageSettings) -> npt.NDArray[np.uint8]:
    """Return the pixels of an encoded image; everything except the file is as in ``decode_image``."""
    image = _load(content, name, "L" if settings.mode == "L" else "RGB")
    height, width = resized((image.height, image.width), settings.resize, name)
    if (width, height) != image.size:
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    box = crop_box((height, width), settings.crop, name)
    return np.asarray(image if box is None else image.crop(box))


def image_size(path: str, name: str) -> tuple[int, int]:
    """Return height and width from the file's header, without decoding."""
    return encoded_size(_read(path, name), name)


def encoded_size(content: bytes, name: str) -> tuple[int, int]:
    """Return height and width from an encoded image's header, without decoding."""
    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
            return image.height, image.width
    except Exception as error:
        raise _damaged(name, error) from error


def _load(content: bytes, name: str, mode: str) -> Image.Image:
    try:
        image = Image.open(io.BytesIO(content), formats=_FORMATS)
        _refuse_bomb(image)
        return _convert(image, name, mode)
    except PtqError:
        raise
    except Exception as error:  # on malformed bytes Pillow's decoders may raise anything, even SyntaxError
        raise _damaged(name, error) from error


def _refuse_bomb(image: Image.Image) -> None:
    # Pillow itself only warns up to twice this size.
    if image.width * image.height > MAX_PIXELS:
        raise Image.DecompressionBombError(f"{image.width} by {image.height} pixels")


def _read(path: str, name: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            # One read of the known size: half the time of Path.read_bytes on images of a few KB.
            size = os.fstat(descriptor).st_size
            content = os.read(descriptor, size)
            while len(content) < size and (part := os.read(descriptor, size - len(content))):
                content += part
        finally:
            os.close(descriptor)
    except OSError as error:
        raise unreadable(name, error) from error
    return content


def _convert(image: Image.Image, name: str, mode: str) -> Image.Image:
    image.load()
    if image.mode == mode:
        return image
    if image.mode.startswith(("I", "F")):
        # Pillow would clip such values to 255 instead of scaling them.
        raise DataFormatError(
            f"{name} has pixels of mode {image.mode}, expected 8 bits per channel",
            hint="convert it to 8 bits, or give arrays as .npz",
        )
    if "transparency" in image.info:
        image = image.convert("RGBA")  # a palette with alpha cannot be converted to RGB directly
    return image.convert(mode)


def _damaged(name: str, error: Exception) -> DamagedSampleError:
    if isinstance(error, UnidentifiedImageError):
        reason = "it is not an image of a known kind"  # Pillow's text names a memory address
    elif isinstance(error, (Image.DecompressionBombError, Image.DecompressionBombWarning)):
        reason = f"it has more than {MAX_PIXELS} pixels, as decompression bombs do"
    else:
        reason = str(error) or type(error).__name__
    return DamagedSampleError(f"{name} cannot be decoded: {reason}", hint="replace or remove the file")


# A folder of images, with or without one subfolder for each class.


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


# Turn a model's input back into a small picture, if it looks like one.


LARGEST = 64
"""Largest side in pixels; a larger picture is scaled down, a smaller one is kept."""
SMALLEST = 4
"""Smallest side in pixels; anything smaller is a list of numbers rather than a picture."""
QUALITY = 88
SLACK = 2.0
"""How far outside 0 to 255 pixels may lie because of rounding and resizing."""


def thumbnail(sample: Array, settings: ImageSettings) -> bytes | None:
    r"""Return a sample as a small JPEG; None if it is not a picture.

    The steps of the image settings are undone. Where the result is not pixels, as for an array that was
    prepared elsewhere, the sample's own range is mapped to black and white.

    Shapes:
        sample: [H, W], or with 1 or 3 channels [C, H, W] or [H, W, C]; H and W at least 4.

    Example:
        >>> thumbnail(np.zeros((3, 8, 8), np.float32), ImageSettings())[:2]
        b'\xff\xd8'
        >>> print(thumbnail(np.zeros(40, np.float32), ImageSettings()))
        None
    """
    pixels = _channels_last(np.asarray(sample), settings.layout)
    if pixels is None or min(pixels.shape[:2]) < SMALLEST or pixels.dtype.kind not in "biuf":
        return None
    if not np.isfinite(pixels).all():
        return None
    image = Image.fromarray(_to_bytes(pixels.astype(np.float64), settings))
    image.thumbnail((LARGEST, LARGEST))
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=QUALITY, subsampling=0)
    return stream.getvalue()


def _channels_last(sample: Array, layout: str) -> Array | None:
    if sample.ndim == 2:
        return sample[..., None]
    if sample.ndim != 3:
        return None
    first, last = sample.shape[0] in (1, 3), sample.shape[2] in (1, 3)
    if first and (layout == "NCHW" or not last):
        return sample.transpose(1, 2, 0)
    return sample if last else None


def _to_bytes(pixels: npt.NDArray[np.float64], settings: ImageSettings) -> npt.NDArray[np.uint8]:
    found = _undone(pixels, settings)
    if found is None:
        low, high = float(pixels.min()), float(pixels.max())
        found = (pixels - low) * (255.0 / (high - low) if high > low else 0.0)
    shown: npt.NDArray[np.uint8] = np.clip(np.rint(found), 0, 255).astype(np.uint8)
    if shown.shape[2] == 1:
        return shown[..., 0]
    return shown[..., ::-1] if settings.mode == "BGR" else shown


def _undone(pixels: npt.NDArray[np.float64], settings: ImageSettings) -> npt.NDArray[np.float64] | None:
    channels = pixels.shape[2]
    if any(len(values) not in (1, channels) for values in (settings.mean, settings.std)):
        return None
    found: npt.NDArray[np.float64] = (pixels * settings.std + settings.mean) / settings.scale
    fits = found.min() >= -SLACK and found.max() <= 255 + SLACK
    return found if fits else None
