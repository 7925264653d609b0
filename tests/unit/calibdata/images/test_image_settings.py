import math

import numpy as np
import pytest

from ptq_cli.calibdata.images.image_settings import check_image_settings, crop_box, normalize, resized
from ptq_cli.core.errors import DamagedSampleError, RecipeValueError
from ptq_cli.recipe.sections import ImageSettings
from tests.each_case import each_case

REFUSED = {
    "mode": (ImageSettings(mode="rgb"), r"image\.mode 'rgb' is unknown \(did you mean 'RGB'\?\)"),
    "layout": (ImageSettings(layout="NHCW"), r"image\.layout 'NHCW' is unknown \(did you mean 'NHWC'\?\)"),
    "mean_length": (ImageSettings(mean=[0.1, 0.2]), r"image\.mean has 2 values, expected 1 or 3"),
    "mean_empty": (ImageSettings(mean=[]), r"image\.mean has 0 values, expected 1 or 3"),
    "std_for_gray": (ImageSettings(mode="L", std=[1.0] * 3), r"image\.std has 3 values, expected 1"),
    "std_zero": (ImageSettings(std=[1.0, 0.0, 1.0]), r"image\.std holds 0: \[1\.0, 0\.0, 1\.0\]"),
    "std_nan": (ImageSettings(std=[math.nan]), r"image\.std must be finite"),
    "scale_zero": (ImageSettings(scale=0.0), r"image\.scale must be finite and not 0, got 0\.0"),
    "scale_inf": (ImageSettings(scale=math.inf), r"image\.scale must be finite and not 0, got inf"),
    "resize_length": (
        ImageSettings(resize=[1, 2, 3]),
        r"image\.resize has 3 values, expected \[height, width\] or \[n\]",
    ),
    "crop_length": (ImageSettings(crop=[8]), r"image\.crop has 1 values, expected \[height, width\]"),
    "resize_zero": (ImageSettings(resize=[0, 8]), r"image\.resize must be positive, got \[0, 8\]"),
    "crop_above_resize": (
        ImageSettings(resize=[8, 8], crop=[4, 9]),
        r"image\.crop \[4, 9\] is larger than image\.resize \[8, 8\]",
    ),
    "crop_above_shorter_side": (
        ImageSettings(resize=[8], crop=[9, 9]),
        r"image\.crop \[9, 9\] is larger than image\.resize \[8\]",
    ),
}


@each_case("settings, message", REFUSED.values(), ids=REFUSED.keys())
def test_refused(settings, message):
    with pytest.raises(RecipeValueError, match=message):
        check_image_settings(settings)


@each_case(
    "size, resize, result",
    [
        ((100, 201), [50], (50, 100)),
        ((201, 100), [50], (100, 50)),
        ((10, 10), [50], (50, 50)),
        ((10, 20), [], (10, 20)),
        ((10, 20), [3, 4], (3, 4)),
    ],
)
def test_resized(size, resize, result):
    assert resized(size, resize, "it") == result


def test_thin_image_does_not_become_a_huge_one():
    with pytest.raises(
        DamagedSampleError, match=r"it of size \[1, 60000\] would become 224 by 13440000 pixels"
    ):
        resized((1, 60000), [224], "it")


def test_crop_is_from_the_center():
    assert crop_box((8, 10), [4, 4], "it") == (3, 2, 7, 6)


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
