"""Samples of tar shards: what each member is, how samples become batches, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from ptq_cli.calibdata import tar_dataset as tar_module
from ptq_cli.calibdata.bind import bind_inputs
from ptq_cli.calibdata.dataset.batches import Selection, Shard
from ptq_cli.calibdata.image_folder import ImageDataset
from ptq_cli.calibdata.open_dataset import open_dataset
from ptq_cli.calibdata.tar_dataset import TarDataset
from ptq_cli.core.errors import (
    DamagedSampleError,
    DataFormatError,
    DataNameError,
    DataShapeError,
    DataTypeError,
    EmptyDataError,
    LabelError,
)
from ptq_cli.core.tensors import TensorSpec
from ptq_cli.recipe.sections import ImageSettings
from tests.unit.calibdata.conftest import npy, peak_of_iterating, png

RAW = ImageSettings(scale=1.0)


def open_tar(path, settings=RAW, samples=None):
    dataset = open_dataset(path, settings, samples=samples)
    assert isinstance(dataset, TarDataset)
    return dataset


def images(count, start=0):
    return {
        name: content
        for index in range(start, start + count)
        for name, content in ((f"{index:04}.cls", b"%d" % (index % 3)), (f"{index:04}.png", png(index)))
    }


@pytest.mark.parametrize("mode", ["w", "w:gz"], ids=["plain", "gzip"])
def test_batches_carry_pixels_labels_and_names(save_tar, mode):
    dataset = open_tar(save_tar(images(3), mode=mode))
    first, second = dataset.batches(2)
    assert (dataset.count, dataset.has_labels, dataset.class_names) == (None, True, ())
    assert str(dataset.specs[""]) == ": float32[?, 3, 4, 4]"
    assert first.inputs[""][:, 0, 0, 0].tolist() == [0.0, 1.0]
    assert (first.labels.tolist(), second.labels.tolist()) == ([0, 1], [2])
    assert first.names == ("train.tar:0000", "train.tar:0001")
    assert second.inputs[""][:, 0, 0, 0].tolist() == [2.0]


def test_images_are_as_those_of_a_folder(save_tar, save_images, tmp_path):
    settings = ImageSettings(resize=[6], crop=[5, 4], mean=[0.1, 0.2, 0.3], std=[0.5], mode="BGR")
    folder = save_images({f"{index}.png": 9 * index for index in range(5)}, size=(8, 9))
    packed = save_tar({path.name: path.read_bytes() for path in sorted((tmp_path / "images").iterdir())})
    for found, wanted in zip(
        open_tar(packed, settings).batches(3), ImageDataset(folder, settings).batches(3), strict=True
    ):
        assert found.inputs[""].tobytes() == wanted.inputs[""].tobytes()


def test_arrays_by_the_name_of_the_input(save_tar, rng):
    ids, mask = rng.integers(0, 9, (4, 5)), rng.random((4, 2, 3)).astype(np.float32)
    members = {}
    for index in range(4):
        members[f"{index}.input_ids.npy"] = npy(ids[index])
        members[f"{index}.mask.npy"] = npy(mask[index])
        members[f"{index}.scalar.npy"] = npy(np.float32(index))
        members[f"{index}.label.npy"] = npy([index])
    dataset = open_tar(save_tar(members))
    (batch,) = dataset.batches(9)
    assert [str(spec) for spec in dataset.specs.values()] == [
        "input_ids: int64[?, 5]",
        "mask: float32[?, 2, 3]",
        "scalar: float32[?]",
    ]
    assert np.array_equal(batch.inputs["input_ids"], ids)
    assert np.array_equal(batch.inputs["mask"], mask)
    assert batch.inputs["scalar"].tolist() == [0, 1, 2, 3]
    assert batch.labels.tolist() == [0, 1, 2, 3]


def test_labels_in_json(save_tar):
    members = {}
    for index in range(3):
        members[f"{index}.json"] = json.dumps({"label": index + 5, "text": "x"}).encode()
        members[f"{index}.png"] = png(index)
    (batch,) = open_tar(save_tar(members)).batches(3)
    assert batch.labels.tolist() == [5, 6, 7]


def test_a_byte_order_mark_is_no_part_of_a_class(save_tar):
    (batch,) = open_tar(save_tar({"0.cls": b"\xef\xbb\xbf3", "0.jpg": png(1)})).batches(3)
    assert batch.labels.tolist() == [3]


@pytest.mark.parametrize("content", [b'{"label": "cat"}', b'{"width": 3}', b"[1]", b"true", b'"4"'])
def test_json_without_a_label(save_tar, content):
    assert not open_tar(save_tar({"0.json": content, "0.png": png(1)})).has_labels


def test_json_alone_is_no_sample(save_tar):
    members = {"info.json": b"{}", "0.png": png(1), "index.json": b"{}", "1.png": png(2)}
    dataset = open_tar(save_tar(members))
    for selection in (Selection(), Selection(Shard(1, 2))):
        assert [batch.names for batch in dataset.batches(2, selection)] == [("train.tar:0", "train.tar:1")]


def test_arrays_that_are_no_input_are_passed_over(save_tar):
    members = {}
    for index in range(2):
        members[f"{index}.emb.npy"] = npy(np.zeros(3)) if not index else b"damaged"
        members[f"{index}.png"] = png(index)
    dataset = open_tar(save_tar(members))
    assert set(dataset.specs) == {"", "emb"}
    bound = bind_inputs(dataset, [TensorSpec("x", np.dtype("float32"), (None, 3, 4, 4))])
    (batch,) = bound.batches(2)
    assert list(batch.inputs) == ["x"]
    with pytest.raises(DataFormatError, match=r"array '1\.emb\.npy' of .*train\.tar' is not an npy array"):
        list(dataset.batches(2))


def test_a_folder_and_a_pattern_are_read_in_order(save_tar, tmp_path):
    (tmp_path / "shards").mkdir()
    for shard in range(3):
        save_tar(images(2, 2 * shard), name=f"shards/t-{shard:02}.tar")
    (tmp_path / "shards/readme.md").touch()
    (tmp_path / "shards/.t-9.tar").touch()
    folder = open_tar(str(tmp_path / "shards"))
    pattern = open_tar(str(tmp_path / "shards/t-{00..02}.tar"))
    names = [name for batch in folder.batches(4) for name in batch.names]
    assert names == [f"t-{index // 2:02}.tar:{index:04}" for index in range(6)]
    assert [batch.size for batch in pattern.batches(4)] == [4, 2]
    assert folder.digest() == pattern.digest()
    assert open_tar(str(tmp_path / "shards/t-{00..01}.tar")).digest() != folder.digest()


def test_plain_archives_are_passed_over_by_seeking(save_tar, monkeypatch):
    content = npy(np.zeros(40_000, np.float32))
    path = save_tar({f"{index:03}.npy": content for index in range(50)})
    dataset = open_tar(path)
    read = []

    class Counted:
        def __init__(self, stream):
            self.stream = stream

        def read(self, count):
            part = self.stream.read(count)
            read.append(len(part))
            return part

        def seek(self, *place):
            return self.stream.seek(*place)

    entries_of = tar_module.entries_of
    monkeypatch.setattr(tar_module, "entries_of", lambda stream, file: entries_of(Counted(stream), file))
    assert [batch.size for batch in dataset.batches(5, Selection(done=9))] == [5]
    assert sum(read) < 6 * len(content)


def test_sequences_of_any_length_one_by_one(save_tar):
    path = save_tar({f"{index}.x.npy": npy(np.zeros(3 + index, np.int64)) for index in range(3)})
    assert [batch.inputs["x"].shape for batch in open_tar(path).batches(1)] == [(1, 3), (1, 4), (1, 5)]
    with pytest.raises(
        DataShapeError,
        match=r"'x' of sample 'train\.tar:1' of .* has shape \[4\], but that of 'train\.tar:0' .* has \[3\]",
    ) as error:
        list(open_tar(path).batches(2))
    assert "batch_size = 1" in error.value.hint


X = npy(np.zeros(3, np.float32))

BAD = {
    "no member": ({}, EmptyDataError, r"has no samples"),
    "nothing usable": ({"0.txt": b"x"}, EmptyDataError, r"has no samples"),
    "a label alone": ({"0.cls": b"1"}, DataNameError, r"sample 'train\.tar:0' has no image and no array"),
    "a missing input": (
        {"0.x.npy": X, "0.y.npy": X, "1.x.npy": X},
        DataNameError,
        r"sample 'train\.tar:1' of '.*' has no array 'y', unlike the first sample",
    ),
    "a missing image": (
        {"0.cls": b"1", "0.png": png(1), "1.cls": b"1"},
        DataNameError,
        r"sample 'train\.tar:1' of '.*' has no image, unlike",
    ),
    "an array for an image": (
        {"0.png": png(1), "1.npy": X},
        DataNameError,
        r"sample 'train\.tar:1' of '.*' has no image, unlike",
    ),
    "members apart": (
        {"0.x.npy": X, "1.x.npy": X, "0.y.npy": X},
        DataNameError,
        r"sample 'train\.tar:0' of '.*' has no array 'x'",
    ),
    "a dtype that differs": (
        {"0.x.npy": X, "1.x.npy": npy(np.zeros(3))},
        DataTypeError,
        r"array 'x' of sample 'train\.tar:1' of .* has dtype float64, but that of 'train\.tar:0' has float32",
    ),
    "images that differ in size": (
        {"0.png": png(1), "1.png": png(1, (5, 4))},
        DataShapeError,
        r"'train\.tar:0' is \[4, 4\], 'train\.tar:1' is \[4, 5\]",
    ),
    "a label too few": ({"0.png": png(1), "0.cls": b"1", "1.png": png(1)}, LabelError, r"1' .* has no label"),
    "a label too many": ({"0.png": png(1), "1.png": png(1), "1.cls": b"1"}, LabelError, r"1' .* has a label"),
    "two labels": (
        {"0.cls": b"1", "0.label.npy": npy(1), "0.png": png(1)},
        LabelError,
        r"sample 'train\.tar:0' has two labels, the second is label '0\.label\.npy'",
    ),
    "a label of text": ({"0.png": png(1), "0.cls": b"cat"}, LabelError, r"label '0\.cls' of .* is 'cat'"),
    "a label of float": ({"0.png": png(1), "0.label.npy": X}, LabelError, r"'0\.label\.npy' .* float32"),
    "a label beyond int64": ({"0.png": png(1), "0.cls": b"9999999999999999999"}, LabelError, r"int64"),
    "a long label": (
        {"0.png": png(1), "0.cls": b"1" * 2000},
        DataFormatError,
        r"2000 bytes, the limit is 1024",
    ),
    "no json": ({"0.png": png(1), "0.json": b"{"}, LabelError, r"label '0\.json' of .* is not JSON"),
    "deep json": ({"0.png": png(1), "0.json": b"[" * 100_000}, LabelError, r"is not JSON: RecursionError"),
    "two arrays of one name": (
        {"0.jpg": png(1), "0.png": png(1)},
        DataFormatError,
        r"sample 'train\.tar:0' has two arrays without a name, the second is image '0\.png'",
    ),
    "numbers behind a dot": (
        {f"frame.{index}.npy": X for index in range(300)},
        DataFormatError,
        r"sample 'train\.tar:frame' has more than 256 arrays",
    ),
    "Python objects": (
        {"0.x.npy": npy(np.array([{}], object), allow_pickle=True)},
        DataFormatError,
        r"array '0\.x\.npy' of '.*train\.tar' holds Python objects, which ptq never unpickles",
    ),
    "an empty array": ({"0.x.npy": npy(np.zeros(0))}, EmptyDataError, r"has no values"),
    "a truncated array": ({"0.x.npy": X[:-1]}, DataFormatError, r"array '0\.x\.npy' of .* is truncated"),
    "no array": ({"0.x.npy": b"text"}, DataFormatError, r"array '0\.x\.npy' of .* is not an npy array"),
    "no image": ({"0.png": b"text"}, DamagedSampleError, r"image '0\.png' of .* cannot be decoded"),
    "half an image": ({"0.png": png(1)[:50]}, DamagedSampleError, r"image '0\.png' of .* cannot be decoded"),
}


@pytest.mark.parametrize(("members", "error", "message"), BAD.values(), ids=BAD.keys())
def test_bad_samples_are_refused(save_tar, members, error, message):
    path = save_tar(members)
    with pytest.raises(error, match=message) as caught:
        list(open_tar(path).batches(4))
    assert len(str(caught.value).splitlines()) <= 2


def test_a_file_that_is_gone(save_tar):
    dataset = open_tar(path := save_tar(images(1)))
    Path(path).unlink()
    with pytest.raises(Exception, match=r"PTQ-FILE-001: data '.*train\.tar' cannot be read: No such file"):
        list(dataset.batches(1))


@pytest.mark.parametrize(
    "mode", ["w", pytest.param("w:gz", marks=pytest.mark.nightly)], ids=["plain", "gzip"]
)
def test_peak_memory_does_not_grow_with_the_samples(save_tar, mode):
    content = npy(np.zeros(4096, np.float32))
    path = save_tar({f"{index:05}.x.npy": content for index in range(640)}, mode=mode)
    few, all_ = (peak_of_iterating(open_tar(path, samples=samples)) for samples in (128, 640))
    # Where each sample lies is known: some 150 bytes of its 16 kB.
    assert all_ - few < 200 * (640 - 128)
