import math

import pytest

from ptq_cli.calibdata.checked_settings import check_image_settings, crop_box, fixed_size, resized
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


def test_unknown_names_list_the_known_ones():
    with pytest.raises(RecipeValueError) as error:
        check_image_settings(ImageSettings(mode="HSV"))
    assert error.value.hint == "known: RGB, BGR, L"


@each_case(
    "resize, crop, size",
    [([], [], None), ([8], [], None), ([8, 9], [], (8, 9)), ([8, 9], [4, 5], (4, 5)), ([], [4, 5], (4, 5))],
)
def test_fixed_size_is_that_of_the_last_step(resize, crop, size):
    assert fixed_size(ImageSettings(resize=resize, crop=crop)) == size


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


@pytest.mark.parametrize("crop", [[], [8, 10]])
def test_crop_of_everything_is_none(crop):
    assert crop_box((8, 10), crop, "it") is None


@pytest.mark.parametrize("crop", [[9, 1], [1, 11]])
def test_crop_larger_than_the_image(crop):
    with pytest.raises(RecipeValueError, match=r"is larger than it of size \[8, 10\]"):
        crop_box((8, 10), crop, "it")
