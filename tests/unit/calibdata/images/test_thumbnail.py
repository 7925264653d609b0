"""A model's input becomes the picture that it was made of."""

import io

import numpy as np
import pytest
from PIL import Image

from ptq_cli.calibdata.images.image_settings import normalize
from ptq_cli.calibdata.images.thumbnail import thumbnail
from ptq_cli.core.tensors import Array
from ptq_cli.recipe.sections import ImageSettings
from tests.each_case import each_case

STATISTICS = {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]}


def pixels_of(content: bytes | None) -> Array:
    assert content is not None
    return np.asarray(Image.open(io.BytesIO(content)), np.int64)


def smooth(height: int = 24, width: int = 32, channels: int = 3) -> Array:
    """A picture that JPEG keeps well: slow gradients, different in each channel."""
    rows, columns = np.mgrid[0:height, 0:width]
    shades = [rows * 200 // height + 20, columns * 200 // width + 20, (rows + columns) * 2 + 30]
    return np.stack(shades[:channels], axis=-1).astype(np.uint8)


@each_case("layout", ["NCHW", "NHWC"])
@each_case("mode", ["RGB", "BGR"])
def test_the_image_settings_are_undone(mode: str, layout: str) -> None:
    settings = ImageSettings(mode=mode, layout=layout, **STATISTICS)
    picture = smooth()
    (sample,) = normalize(picture[None], settings)
    assert np.abs(pixels_of(thumbnail(sample, settings)) - picture).max() <= 6


@each_case("shape", [(3, 20, 24), (20, 24, 3), (1, 20, 24), (20, 24)], ids=str)
def test_what_other_settings_made_is_stretched(shape: tuple[int, ...]) -> None:
    sample = np.linspace(-300.0, 900.0, int(np.prod(shape))).reshape(shape).astype(np.float32)
    found = pixels_of(thumbnail(sample, ImageSettings()))
    assert found.shape[:2] == (20, 24)
    assert found.min() < 25 and found.max() > 230


@each_case(
    "sample",
    [
        np.zeros(40),
        np.zeros((4, 20, 20)),
        np.zeros((2, 3, 20, 20)),
        np.zeros((3, 2, 200)),
        np.zeros((3, 0, 9)),
    ],
    ids=["one axis", "four channels", "four axes", "a strip", "empty"],
)
def test_what_is_no_picture_is_none(sample: Array) -> None:
    assert thumbnail(sample, ImageSettings()) is None


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_no_picture(value: float) -> None:
    sample = np.zeros((3, 8, 8), np.float32)
    sample[0, 0, 0] = value
    assert thumbnail(sample, ImageSettings()) is None
