"""Turn a batch of pixels into the model's input: scale, mean, std and layout, for the whole batch at once."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ptq_cli.calibdata.images.checked_settings import CHANNELS
from ptq_cli.core.errors import DataShapeError
from ptq_cli.recipe.sections.input_sections import ImageSettings


def normalize(pixels: npt.NDArray[np.uint8], settings: ImageSettings) -> npt.NDArray[np.float32]:
    """Return ``(pixels * scale - mean) / std`` in the layout of the settings, contiguous.

    Shapes:
        pixels: ``(N, H, W, C)``, RGB where the mode is BGR.
        result: ``(N, C, H, W)`` or ``(N, H, W, C)``.

    Units:
        pixels: 0 to 255. mean, std: in units of the scaled values, in the order of the mode's channels.

    Example:
        >>> pixels = np.array([[[[255, 0, 0]]]], np.uint8)
        >>> normalize(pixels, ImageSettings(mode="BGR", mean=[0.5], std=[0.5])).ravel().tolist()
        [-1.0, -1.0, 1.0]
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

    Args:
        images: as ``decode_bytes`` returns them.
        names: how messages call each image.
        settings: the image settings, already checked.
        source: the data that the user named, for messages.

    Shapes:
        result: ``(N, C, H, W)`` or ``(N, H, W, C)``.

    Raises:
        DataShapeError: two images differ in size.

    Example:
        >>> pixels = np.zeros((2, 3, 3), np.uint8)
        >>> normalize_images([pixels, pixels], ["a", "b"], ImageSettings(), "it").shape
        (2, 3, 2, 3)
    """
    for image, name in zip(images, names, strict=True):
        require_size_of_first(image.shape, images[0].shape, name, names[0], source)
    pixels = np.stack(images)
    return normalize(pixels.reshape(*pixels.shape[:3], CHANNELS[settings.mode]), settings)


def require_size_of_first(
    found: tuple[int, ...], first: tuple[int, ...], name: str, first_name: str, source: str
) -> None:
    """Check that an image has the same size as the first one of its batch.

    Shapes:
        found, first: begin with height and width.

    Raises:
        DataShapeError: they differ in size.
    """
    if found[:2] != first[:2]:
        raise DataShapeError(
            f"images of '{source}' differ in size: '{first_name}' is {list(first[:2])}, "
            f"'{name}' is {list(found[:2])}",
            hint="set image.resize, or image.crop after it, to [height, width]",
        )
