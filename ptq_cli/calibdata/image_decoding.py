"""One encoded image as pixels, by settings checked before.

The EXIF orientation is not applied: torchvision, timm and TensorFlow train without it, and calibration must
use the same images as training. Resizing is Pillow's bilinear filter with antialiasing, torchvision's
default for images.
"""

import io
import math
import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from ptq_cli.calibdata.dataset.data_files import unreadable
from ptq_cli.core.errors import (
    DamagedSampleError,
    DataFormatError,
    DataShapeError,
    PtqError,
    RecipeValueError,
)
from ptq_cli.core.tensors import TensorSpec
from ptq_cli.core.words import did_you_mean
from ptq_cli.recipe.sections import ImageSettings

CHANNELS = {"RGB": 3, "BGR": 3, "L": 1}
LAYOUTS = ("NCHW", "NHWC")
MAX_PIXELS = 89_478_485  # Pillow's limit against decompression bombs: 256 MiB of RGB
MAX_IMAGE_BYTES = 3 * MAX_PIXELS + (1 << 20)  # of an encoded image: the largest, uncompressed


def check_image_settings(settings: ImageSettings) -> None:
    """Check everything about the settings that can be checked without an image."""
    _require_known("mode", settings.mode, list(CHANNELS))
    _require_known("layout", settings.layout, list(LAYOUTS))
    _require_size("resize", settings.resize, (0, 1, 2))
    _require_size("crop", settings.crop, (0, 2))
    if not math.isfinite(settings.scale) or settings.scale == 0:
        raise RecipeValueError(
            f"image.scale must be finite and not 0, got {settings.scale}", hint="1/255 maps to 0…1"
        )
    _require_a_value_a_channel("mean", settings.mean, settings.mode)
    _require_a_value_a_channel("std", settings.std, settings.mode)
    if 0 in settings.std:
        raise RecipeValueError(
            f"image.std holds 0: {settings.std}", hint="pixels are divided by std; 1 changes nothing"
        )
    if settings.resize and settings.crop:
        _require_crop_in_resize(settings)


def fixed_size(settings: ImageSettings) -> tuple[int, int] | None:
    """Height and width of every prepared image, or None where they depend on the image."""
    for sizes in (settings.crop, settings.resize):
        if len(sizes) == 2:
            return sizes[0], sizes[1]
    return None


def image_spec(name: str, size: tuple[int | None, int | None], settings: ImageSettings) -> TensorSpec:
    """Return the tensor specification of a batch of images of one size.

    Shapes: size: height and width, None where they depend on the image.
    """
    height, width = size
    channels = CHANNELS[settings.mode]
    shape = (None, channels, height, width) if settings.layout == "NCHW" else (None, height, width, channels)
    return TensorSpec(name, np.dtype(np.float32), shape)


def resized(size: tuple[int, int], resize: list[int], name: str) -> tuple[int, int]:
    """Height and width after ``resize``.

    Of ``[n]``, the shorter side, the longer side is rounded down.

    Source: torchvision.transforms.Resize.
    """
    if not resize:
        return size
    if len(resize) == 2:
        return resize[0], resize[1]
    height, width = size
    short, long = min(size), max(size)
    longer = int(resize[0] * long / short)
    if resize[0] * longer > MAX_PIXELS:
        raise DamagedSampleError(
            f"{name} of size [{height}, {width}] would become {resize[0]} by {longer} pixels",
            hint="set image.resize to [height, width], or remove the image",
        )
    return (resize[0], longer) if height <= width else (longer, resize[0])


def crop_box(size: tuple[int, int], crop: list[int], name: str) -> tuple[int, int, int, int] | None:
    """Left, top, right and bottom of the crop from the center, or None without a crop.

    Source: torchvision.transforms.CenterCrop.
    """
    if not crop or tuple(crop) == size:
        return None
    (height, width), (rows, columns) = size, crop
    if rows > height or columns > width:
        raise RecipeValueError(
            f"image.crop {crop} is larger than {name} of size [{height}, {width}]",
            hint="set image.resize to at least the crop",
        )
    top, left = round((height - rows) / 2), round((width - columns) / 2)
    return left, top, left + columns, top + rows


def _require_known(key: str, value: str, known: list[str]) -> None:
    if value not in known:
        raise RecipeValueError(
            f"image.{key} '{value}' is unknown{did_you_mean(value.upper(), known)}",
            hint=f"known: {', '.join(known)}",
        )


def _require_size(key: str, value: list[int], lengths: tuple[int, ...]) -> None:
    wanted = "[height, width] or [n]" if 1 in lengths else "[height, width]"
    if len(value) not in lengths:
        raise RecipeValueError(
            f"image.{key} has {len(value)} values, expected {wanted}: {value}",
            hint="pass one number, or one for each channel",
        )
    if any(size < 1 for size in value):
        raise RecipeValueError(f"image.{key} must be positive, got {value}", hint=f"write it as {wanted}")


def _require_a_value_a_channel(key: str, values: list[float], mode: str) -> None:
    channels = CHANNELS[mode]
    if len(values) not in (1, channels):
        wanted = "1" if channels == 1 else f"1 or {channels}"
        raise RecipeValueError(
            f"image.{key} has {len(values)} values, expected {wanted}",
            hint=f"mode {mode} has {channels} channel{'s' if channels > 1 else ''}",
        )
    if not all(math.isfinite(value) for value in values):
        raise RecipeValueError(f"image.{key} must be finite, got {values}", hint="pass numbers such as 0.5")


def _require_crop_in_resize(settings: ImageSettings) -> None:
    crop, resize = settings.crop, settings.resize
    # With [n] only the shorter side is known, whichever it is; the crop's shorter side must fit into it.
    fits = crop[0] <= resize[0] and crop[1] <= resize[1] if len(resize) == 2 else min(crop) <= resize[0]
    if not fits:
        raise RecipeValueError(
            f"image.crop {crop} is larger than image.resize {resize}", hint="resize to at least the crop"
        )


def normalize(pixels: npt.NDArray[np.uint8], settings: ImageSettings) -> npt.NDArray[np.float32]:
    """Return ``(pixels * scale - mean) / std`` in the layout of the settings, contiguous.

    Shapes:
        pixels: ``(N, H, W, C)``, RGB where the mode is BGR.
        result: ``(N, C, H, W)`` or ``(N, H, W, C)``.

    Units: pixels: 0 to 255. mean, std: in units of the scaled values, in the order of the mode's channels.
    """
    if settings.mode == "BGR":
        pixels = pixels[..., ::-1]
    channel_shape: tuple[int, ...] = (-1,)
    if settings.layout == "NCHW":
        pixels, channel_shape = pixels.transpose(0, 3, 1, 2), (-1, 1, 1)
    # Each step works in place, so that the only array besides the pixels is the result. The steps are not
    # folded into one factor, so that the values are the same as in training.
    result = np.empty(pixels.shape, np.float32)
    np.multiply(pixels, np.float32(settings.scale), out=result, dtype=np.float32)
    if any(settings.mean):
        result -= np.array(settings.mean, np.float32).reshape(channel_shape)
    if any(value != 1 for value in settings.std):
        result /= np.array(settings.std, np.float32).reshape(channel_shape)
    return result


def normalize_images(
    images: Sequence[npt.NDArray[np.uint8]], names: Sequence[str], settings: ImageSettings, source: str
) -> npt.NDArray[np.float32]:
    """Return decoded images as one normalized batch.

    The images are as ``decode_bytes`` returns them.

    Shapes: result: ``(N, C, H, W)`` or ``(N, H, W, C)``.
    """
    for image, name in zip(images, names, strict=True):
        require_size_of_first(image.shape, images[0].shape, name, names[0], source)
    pixels = np.stack(images)
    return normalize(pixels.reshape(*pixels.shape[:3], CHANNELS[settings.mode]), settings)


def require_size_of_first(
    found: tuple[int, ...], first: tuple[int, ...], name: str, first_name: str, source: str
) -> None:
    """Check that an image has the same size as the first one of its batch.

    Shapes: found, first: begin with height and width.
    """
    if found[:2] != first[:2]:
        raise DataShapeError(
            f"images of '{source}' differ in size: '{first_name}' is {list(first[:2])}, "
            f"'{name}' is {list(found[:2])}",
            hint="set image.resize, or image.crop after it, to [height, width]",
        )


# Decoders that run no other program (EPS would start Ghostscript), whatever the file's suffix says.
_FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "PPM", "TIFF", "GIF")


def decode_image(path: str, name: str, settings: ImageSettings) -> npt.NDArray[np.uint8]:
    """Return an image's pixels after mode, resize and crop; BGR is still RGB here.

    Messages begin with ``name``, such as ``"image 'cat/1.jpg' of 'calib'"``. The first frame of an animated
    image is used; an alpha channel is dropped.

    Shapes: result: ``(height, width, 3)``, or ``(height, width)`` for mode ``L``.
    Units: 0 to 255.
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
