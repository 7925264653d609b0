"""A model's input becomes the picture that it was made of."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from ptq_cli.calibdata.images.image_decoding import decode_image, image_size, thumbnail
from ptq_cli.calibdata.images.image_settings import normalize
from ptq_cli.core.errors import DamagedSampleError, DataFormatError, InputFileError, RecipeValueError
from ptq_cli.core.tensors import Array
from ptq_cli.recipe.sections import ImageSettings
from tests.each_case import each_case

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
