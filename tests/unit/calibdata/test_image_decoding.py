"""Encoded images become pixels by the settings, and damaged ones are refused."""

import io
import math
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from ptq_cli.calibdata.image_decoding import (
    check_image_settings,
    crop_box,
    decode_image,
    image_size,
    normalize,
    resized,
)
from ptq_cli.core.errors import DamagedSampleError, DataFormatError, InputFileError, RecipeValueError
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


NAME = "image 'a.jpg' of 'calib'"


@pytest.fixture
def pixels(rng):
    return rng.integers(0, 256, size=(24, 32, 3), dtype=np.uint8)


def jpeg(pixels):
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG")
    return stream.getvalue()


def saved(tmp_path, content):
    path = tmp_path / "a.jpg"
    path.write_bytes(content)
    return str(path)


def png_header(width, height):
    """A PNG that declares a size and holds almost nothing."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(b"\0" * 10)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@each_case("mode", ["1", "L", "LA", "P", "RGBA", "CMYK"])
def test_modes_become_rgb(tmp_path, mode):
    path = tmp_path / "image"
    Image.new("RGB", (2, 2), (255, 255, 255)).convert(mode).save(path, "TIFF")
    assert decode_image(str(path), NAME, ImageSettings()).tolist() == [[[255] * 3] * 2] * 2


def test_palette_with_transparency_warns_nobody(tmp_path):
    path = tmp_path / "a.png"
    image = Image.new("P", (2, 2), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    image.save(path, transparency=b"\x00\x80")
    assert decode_image(str(path), NAME, ImageSettings())[0, 0].tolist() == [10, 20, 30]


def test_sixteen_bits_are_refused(tmp_path):
    path = tmp_path / "a.png"
    Image.fromarray(np.full((2, 2), 40_000, np.uint16)).save(path)
    with pytest.raises(DataFormatError, match="has pixels of mode I;16, expected 8 bits per channel"):
        decode_image(str(path), NAME, ImageSettings())


def test_exif_orientation_is_not_applied(tmp_path, pixels):
    exif = Image.Exif()
    exif[0x0112] = 6
    path = tmp_path / "a.jpg"
    Image.fromarray(pixels).save(path, exif=exif)
    assert decode_image(str(path), NAME, ImageSettings()).shape == (24, 32, 3)


DAMAGED = {
    "text": (lambda content: b"hello", "it is not an image of a known kind"),
    "empty": (lambda content: b"", "it is not an image of a known kind"),
    "truncated": (lambda content: content[: len(content) // 2], "[Tt]runcated"),
    "header_only": (lambda content: content[:20], ""),
    "bomb": (
        lambda content: png_header(20_000, 20_000),
        "more than 89478485 pixels, as decompression bombs do",
    ),
    "bomb_that_pillow_allows": (lambda content: png_header(10_000, 9_000), "more than 89478485 pixels"),
    "png_without_rows": (lambda content: png_header(10, 10), ""),
    "postscript": (
        lambda content: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        "not an image of a known",
    ),
}


@pytest.mark.parametrize(("damage", "reason"), DAMAGED.values(), ids=DAMAGED.keys())
def test_damaged_image_is_named(tmp_path, pixels, damage, reason):
    path = saved(tmp_path, damage(jpeg(pixels)))
    with pytest.raises(
        DamagedSampleError, match=f"image 'a.jpg' of 'calib' cannot be decoded: .*{reason}"
    ) as error:
        decode_image(path, NAME, ImageSettings())
    assert "0x" not in error.value.message


def test_crop_larger_than_the_image_names_it(tmp_path, pixels):
    with pytest.raises(
        RecipeValueError, match=r"image\.crop \[64, 64\] is larger than image 'a\.jpg' of 'calib'"
    ):
        decode_image(saved(tmp_path, jpeg(pixels)), NAME, ImageSettings(crop=[64, 64]))


def test_image_size_of_damage(tmp_path):
    with pytest.raises(DamagedSampleError, match="it is not an image of a known kind"):
        image_size(saved(tmp_path, b"hello"), NAME)
    with pytest.raises(InputFileError, match="cannot be read"):
        image_size(str(tmp_path / "missing"), NAME)
