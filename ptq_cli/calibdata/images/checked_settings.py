"""The effect of the image settings on sizes and channels, checked before any image is decoded."""

import math

import numpy as np

from ptq_cli.core.errors import DamagedSampleError, RecipeValueError
from ptq_cli.core.known_names import did_you_mean
from ptq_cli.core.tensors import TensorSpec
from ptq_cli.recipe.sections.input_sections import ImageSettings

CHANNELS = {"RGB": 3, "BGR": 3, "L": 1}
LAYOUTS = ("NCHW", "NHWC")

MAX_PIXELS = 89_478_485
"""Pillow's own limit against decompression bombs: 256 MiB of RGB."""

MAX_IMAGE_BYTES = 3 * MAX_PIXELS + (1 << 20)
"""Limit for the bytes of an encoded image: the largest decoded image takes as much without compression."""


def check_image_settings(settings: ImageSettings) -> None:
    """Check everything about the settings that can be checked without an image.

    Raises:
        RecipeValueError: an unknown mode or layout; mean or std with neither one value nor one per channel;
            a std of 0; resize or crop of a wrong length or not positive, or a crop larger than the resize.

    Example:
        >>> check_image_settings(ImageSettings(mode="RGB", mean=[0.5, 0.5]))
        Traceback (most recent call last):
        ...
        ptq_cli.core.errors.RecipeValueError: PTQ-RECIPE-003: image.mean has 2 values, expected 1 or 3
        hint: mode RGB has 3 channels
    """
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
    """Height and width of every prepared image, or None where they depend on the image.

    Example:
        >>> fixed_size(ImageSettings(resize=[256], crop=[224, 224]))
        (224, 224)
        >>> fixed_size(ImageSettings(resize=[256])) is None
        True
    """
    for sizes in (settings.crop, settings.resize):
        if len(sizes) == 2:
            return sizes[0], sizes[1]
    return None


def image_spec(name: str, size: tuple[int | None, int | None], settings: ImageSettings) -> TensorSpec:
    """Return the tensor specification of a batch of images of one size.

    Shapes:
        size: height and width, None where they depend on the image.

    Example:
        >>> str(image_spec("x", (32, 24), ImageSettings(mode="L", layout="NHWC")))
        'x: float32[?, 32, 24, 1]'
    """
    height, width = size
    channels = CHANNELS[settings.mode]
    shape = (None, channels, height, width) if settings.layout == "NCHW" else (None, height, width, channels)
    return TensorSpec(name, np.dtype(np.float32), shape)


def resized(size: tuple[int, int], resize: list[int], name: str) -> tuple[int, int]:
    """Height and width after ``resize``.

    Args:
        size: height and width of the image.
        resize: [height, width], or [n] for the shorter side; the longer side is then rounded down.
        name: how messages call the image.

    Raises:
        DamagedSampleError: the longer side would make the result larger than any sensible image.

    Source:
        torchvision.transforms.Resize.

    Example:
        >>> resized((100, 201), [50], "a.jpg"), resized((100, 201), [8, 9], "a.jpg")
        ((50, 100), (8, 9))
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

    Raises:
        RecipeValueError: the crop is larger than the image.

    Source:
        torchvision.transforms.CenterCrop.

    Example:
        >>> crop_box((10, 8), [4, 4], "a.jpg")
        (2, 3, 6, 7)
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
