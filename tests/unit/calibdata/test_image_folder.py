import numpy as np
import pytest
from PIL import Image

from ptq_cli.calibdata.image_folder import ImageDataset
from ptq_cli.core.errors import DamagedSampleError, DataShapeError, RecipeValueError
from ptq_cli.recipe.sections import ImageSettings
from tests.unit.calibdata.conftest import peak_of_iterating

RAW = ImageSettings(scale=1.0)


def test_batches_carry_pixels_labels_and_names(save_images):
    dataset = ImageDataset(save_images({"a/1.png": 1, "a/2.png": 2, "b/1.png": 3}), RAW)
    first, second = dataset.batches(2)
    assert (dataset.count, dataset.has_labels, dataset.class_names) == (3, True, ("a", "b"))
    assert first.inputs[""][:, 0, 0, 0].tolist() == [1.0, 3.0]
    assert first.labels.tolist() == [0, 1]
    assert first.names == ("a/1.png", "b/1.png")
    assert second.inputs[""][:, 0, 0, 0].tolist() == [2.0]
    assert second.labels.tolist() == [0]


@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        (RAW, (None, 3, 6, 8)),
        (ImageSettings(layout="NHWC"), (None, 6, 8, 3)),
        (ImageSettings(mode="L"), (None, 1, 6, 8)),
        (ImageSettings(resize=[3]), (None, 3, 3, 4)),
        (ImageSettings(resize=[5, 2]), (None, 3, 5, 2)),
        (ImageSettings(resize=[3], crop=[2, 1]), (None, 3, 2, 1)),
    ],
)
def test_spec_is_the_shape_of_the_batches(save_images, settings, shape):
    dataset = ImageDataset(save_images({"1.png": 1, "2.png": 2}, size=(8, 6)), settings)
    (batch,) = dataset.batches(2)
    assert dataset.specs[""].shape == shape
    assert batch.inputs[""].shape == (2, *shape[1:])
    assert batch.inputs[""].dtype == dataset.specs[""].dtype == np.float32
    assert batch.inputs[""].flags.c_contiguous


def test_a_batch_is_not_overwritten_by_the_next(save_images):
    first, second = ImageDataset(save_images({"1.png": 1, "2.png": 2}), RAW).batches(1)
    assert (first.inputs[""] == 1).all()
    assert (second.inputs[""] == 2).all()


def test_images_of_two_sizes_are_named(save_images):
    save_images({"1.png": 1})
    folder = save_images({"2.png": 2}, size=(5, 7))
    with pytest.raises(
        DataShapeError, match=r"differ in size: '1\.png' is \[4, 4\], '2\.png' is \[7, 5\]"
    ) as error:
        list(ImageDataset(folder, RAW).batches(2))
    assert "image.resize" in error.value.hint


def test_damaged_image_is_named(save_images, tmp_path):
    folder = save_images({"a/1.png": 1, "a/2.png": 2})
    path = tmp_path / "images/a/2.png"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DamagedSampleError, match=r"image 'a/2\.png' of '.*images' cannot be decoded"):
        list(ImageDataset(folder, RAW).batches(2))


def test_settings_are_checked_before_listing(tmp_path):
    with pytest.raises(RecipeValueError, match=r"image\.std holds 0"):
        ImageDataset(str(tmp_path / "missing"), ImageSettings(std=[0.0]))


def test_peak_memory_does_not_grow_with_the_samples(tmp_path):
    content = tmp_path / "one.bmp"
    Image.new("RGB", (64, 64)).save(content)
    (tmp_path / "images").mkdir()
    for index in range(320):
        (tmp_path / f"images/{index:03}.bmp").write_bytes(content.read_bytes())
    folder = str(tmp_path / "images")
    few, all_ = (peak_of_iterating(ImageDataset(folder, ImageSettings(), count)) for count in (64, 320))
    assert all_ < 1.05 * few
