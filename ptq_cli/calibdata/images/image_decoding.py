"""One encoded image as pixels (decode, convert, resize, crop), and a model's input as a small picture.

The EXIF orientation is not applied: torchvision, timm and TensorFlow train without it, and calibration must
use the same images as training. Resizing is Pillow's bilinear filter with antialiasing, torchvision's
default for images.
"""

import io
import os

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from ptq_cli.calibdata.dataset.data_files import unreadable
from ptq_cli.calibdata.images.image_settings import MAX_PIXELS, crop_box, resized
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
    content = _read(path, name)
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


LARGEST = 64  # pixels of a side; a larger picture is scaled down
SMALLEST = 4  # pixels of a side; anything smaller is no picture
QUALITY = 88
SLACK = 2.0  # how far rounding and resizing may take pixels outside 0 to 255


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
