import tracemalloc

import numpy as np
import pytest
from PIL import Image

from ptq_cli.calibdata.image_decoding import ImageDataset
from ptq_cli.core.errors import DamagedSampleError, DataShapeError, RecipeValueError
from ptq_cli.recipe.sections import ImageSettings

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


def test_flat_folder_has_no_labels(save_images):
    dataset = ImageDataset(save_images({"1.png": 1}), RAW)
    (batch,) = dataset.batches(8)
    assert not dataset.has_labels
    assert batch.labels is None


def test_samples_are_spread_over_the_classes(save_images):
    dataset = ImageDataset(save_images({f"{c}/{i}.png": 1 for c in "abc" for i in range(4)}), RAW, samples=3)
    (batch,) = dataset.batches(8)
    assert dataset.count == 3
    assert batch.labels.tolist() == [0, 1, 2]


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


def test_only_the_first_image_is_opened_for_its_size(save_images, tmp_path):
    folder = save_images({"1.png": 1})
    (tmp_path / "images/2.png").write_bytes(b"damaged")
    assert ImageDataset(folder, RAW).specs[""].shape == (None, 3, 4, 4)
    (tmp_path / "images/1.png").write_bytes(b"damaged")
    assert ImageDataset(folder, ImageSettings(resize=[4, 4])).count == 2


def test_digest_is_of_the_folder_not_of_its_use(save_images):
    folder = save_images({"1.png": 1, "2.png": 2})
    digest = ImageDataset(folder, RAW).digest()
    assert ImageDataset(folder, ImageSettings(resize=[2, 2]), samples=1).digest() == digest
    save_images({"3.png": 3})
    assert ImageDataset(folder, RAW).digest() != digest


def test_peak_memory_does_not_grow_with_the_samples(tmp_path):
    content = tmp_path / "one.bmp"
    Image.new("RGB", (64, 64)).save(content)
    (tmp_path / "images").mkdir()
    for index in range(320):
        (tmp_path / f"images/{index:03}.bmp").write_bytes(content.read_bytes())
    peaks = []
    for samples in (64, 320):
        dataset = ImageDataset(str(tmp_path / "images"), ImageSettings(), samples)
        next(dataset.batches(1))
        tracemalloc.start()
        for batch in dataset.batches(32):
            del batch
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.05 * peaks[0]
