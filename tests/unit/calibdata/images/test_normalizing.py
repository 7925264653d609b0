import numpy as np
import pytest

from ptq_cli.calibdata.checked_settings import normalize
from ptq_cli.recipe.sections import ImageSettings

MEAN, STD = [0.49, 0.48, 0.44], [0.24, 0.25, 0.26]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("mode", ["RGB", "BGR"])
def test_the_steps_in_the_order_of_the_fields(rng, mode, layout):
    pixels = rng.integers(0, 256, size=(2, 4, 5, 3), dtype=np.uint8)
    found = normalize(pixels, ImageSettings(mode=mode, mean=MEAN, std=STD, layout=layout))
    ordered = pixels[..., ::-1] if mode == "BGR" else pixels
    scaled = ordered.astype(np.float32) * np.float32(1 / 255)
    wanted = (scaled - np.array(MEAN, np.float32)) / np.array(STD, np.float32)
    np.testing.assert_array_equal(found, wanted.transpose(0, 3, 1, 2) if layout == "NCHW" else wanted)
    assert found.dtype == np.float32
    assert found.flags.c_contiguous


def test_defaults_map_to_zero_and_one():
    pixels = np.array([0, 255], np.uint8).reshape(1, 1, 2, 1)
    assert normalize(pixels, ImageSettings(mode="L")).ravel().tolist() == [0.0, 1.0]


def test_one_value_serves_all_channels():
    pixels = np.zeros((1, 1, 1, 3), np.uint8)
    assert normalize(pixels, ImageSettings(mean=[0.5], std=[0.25])).ravel().tolist() == [-2.0] * 3


def test_pixels_are_left_alone(rng):
    pixels = rng.integers(0, 256, size=(1, 2, 2, 3), dtype=np.uint8)
    before = pixels.copy()
    normalize(pixels, ImageSettings(mean=MEAN, std=STD))
    np.testing.assert_array_equal(pixels, before)
