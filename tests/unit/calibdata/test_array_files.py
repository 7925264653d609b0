import zipfile

import numpy as np
import pytest

from ptq_cli.calibdata.array_files import NpzDataset
from ptq_cli.calibdata.dataset.batches import Selection, Shard
from ptq_cli.core.errors import DataFormatError, DataShapeError, EmptyDataError, LabelError
from tests.unit.calibdata.conftest import npy

BOTH = pytest.mark.parametrize("compressed", [False, True], ids=["stored", "compressed"])


@BOTH
def test_batches_are_the_rows_of_every_array(save_npz, rng, compressed):
    ids = rng.integers(0, 100, size=(10, 300))
    mask = rng.random((10, 5, 2)).astype(np.float32)
    label = np.arange(10, dtype=np.int16)
    dataset = NpzDataset(save_npz(compressed, ids=ids, mask=mask, label=label))
    batches = list(dataset.batches(4))
    assert [batch.size for batch in batches] == [4, 4, 2]
    np.testing.assert_array_equal(np.concatenate([b.inputs["ids"] for b in batches]), ids)
    np.testing.assert_array_equal(np.concatenate([b.inputs["mask"] for b in batches]), mask)
    np.testing.assert_array_equal(np.concatenate([b.labels for b in batches]), label)
    assert all(batch.labels.dtype == np.int64 for batch in batches)
    assert batches[2].names == ("calib.npz[8]", "calib.npz[9]")


def test_flipped_value_fails_the_checksum(save_npz, tmp_path):
    path = tmp_path / "calib.npz"
    save_npz(x=np.zeros((100, 10)))
    content = bytearray(path.read_bytes())
    content[4000] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataFormatError, match=r"array 'x' of .* is damaged or truncated: Bad CRC-32"):
        list(NpzDataset(str(path)).batches(8))


def test_arrays_must_agree_on_the_samples(save_npz):
    with pytest.raises(DataShapeError, match="differ in the number of samples: 'a' has 4, 'b' has 5"):
        next(NpzDataset(save_npz(a=np.zeros((4, 1)), b=np.zeros((5, 1)))).batches(1))


LABELS = {
    "count": (np.zeros(3, int), "array 'label' of .* has 3 labels for 4 samples"),
    "bool": (np.zeros(4, bool), "has dtype bool, expected numbers"),
}


@pytest.mark.parametrize(("label", "message"), LABELS.values(), ids=LABELS.keys())
def test_labels_of_a_wrong_kind(save_npz, label, message):
    with pytest.raises(LabelError, match=message):
        next(NpzDataset(save_npz(x=np.zeros((4, 1)), label=label)).batches(1))


def test_two_label_arrays(save_npz):
    with pytest.raises(LabelError, match="has both 'label' and 'labels', expected one"):
        NpzDataset(save_npz(x=np.zeros((1, 1)), label=np.zeros(1, int), labels=np.zeros(1, int)))


@pytest.mark.parametrize("arrays", [{}, {"label": np.zeros(2, int)}], ids=["nothing", "labels_only"])
def test_no_input_array(save_npz, arrays):
    with pytest.raises(EmptyDataError, match="has no input array"):
        NpzDataset(save_npz(**arrays))


def archive_of(path, members, method=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return str(path)


def test_other_members_are_refused(tmp_path):
    source = archive_of(tmp_path / "model.pt", [("model/data.pkl", b"x")])
    with pytest.raises(
        DataFormatError, match=r"a zip archive with 'model/data\.pkl', expected only \.npy members"
    ) as error:
        NpzDataset(source)
    assert "a PyTorch file is a model" in error.value.hint


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_members_of_one_name(tmp_path):
    members = [("x.npy", npy(np.zeros((1, 1))))] * 2
    with pytest.raises(DataFormatError, match="has two arrays named 'x'"):
        NpzDataset(archive_of(tmp_path / "a.npz", members))


def test_compression_without_a_bound_is_refused(tmp_path):
    source = archive_of(tmp_path / "a.npz", [("x.npy", npy(np.zeros((9, 9))))], zipfile.ZIP_BZIP2)
    with pytest.raises(DataFormatError, match="compressed by zip method 12, expected stored or deflate"):
        NpzDataset(source)


def test_member_shorter_than_its_shape(tmp_path):
    content = npy(np.zeros((9, 9)))
    with pytest.raises(DataFormatError, match=r"array 'x' of .* is truncated: found 768 bytes"):
        NpzDataset(archive_of(tmp_path / "a.npz", [("x.npy", content[:-8])]))


def test_changed_archive_is_noticed(save_npz):
    dataset = NpzDataset(save_npz(x=np.zeros((3, 2))))
    save_npz(x=np.zeros((4, 2)))
    with pytest.raises(DataFormatError, match="changed since it was opened"):
        next(dataset.batches(1))
    save_npz(y=np.zeros((3, 2)))
    with pytest.raises(DataFormatError, match="changed since it was opened"):
        next(dataset.batches(1))


@BOTH
def test_a_shard_of_several_arrays_skips_what_is_not_its_own(save_npz, rng, compressed):
    # From Python 3.12 on a seek within one stored member moved all others, which then held wrong numbers.
    left, right = rng.random((2, 64, 4000)).astype(np.float32)
    label = np.arange(64)
    dataset = NpzDataset(save_npz(compressed, left=left, right=right, label=label))
    batches = list(dataset.batches(2, Selection(Shard(2, 2))))
    own = np.arange(64).reshape(-1, 2)[1::2].reshape(-1)
    np.testing.assert_array_equal(np.concatenate([b.inputs["left"] for b in batches]), left[own])
    np.testing.assert_array_equal(np.concatenate([b.inputs["right"] for b in batches]), right[own])
    np.testing.assert_array_equal(np.concatenate([b.labels for b in batches]), own)
