"""A model's input turned back into a small picture, if it looks like one."""

import io

import numpy as np
import numpy.typing as npt
from PIL import Image

from ptq_cli.core.tensors import Array
from ptq_cli.recipe.sections import ImageSettings

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
