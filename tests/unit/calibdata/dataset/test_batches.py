import numpy as np
import pytest

from ptq_cli.calibdata.array_files import NpyDataset, NpzDataset
from ptq_cli.calibdata.dataset.batches import Batch, rebatch
from ptq_cli.calibdata.dataset.dataset import require_samples
from ptq_cli.calibdata.dataset.labels import as_labels, is_class_index, require_labels
from ptq_cli.core.errors import LabelError, RecipeValueError
from tests.each_case import each_case


def batch_of(start, size, width=2, labels=True):
    rows = np.arange(start, start + size)
    values = np.repeat(rows[:, None], width, axis=1).astype(np.float32)
    return Batch({"x": values}, rows if labels else None, tuple(str(row) for row in rows))


def parts(*sizes):
    starts = np.cumsum(sizes, dtype=int) - np.array(sizes, int)
    return [batch_of(int(start), size) for start, size in zip(starts, sizes, strict=True)]


def each(batches):
    yield from batches


@each_case(
    "sizes, batch_size, result",
    [
        ((3, 3, 1), 2, [2, 2, 2, 1]),
        ((3, 3), 3, [3, 3]),
        ((1, 1, 1, 1, 1), 4, [4, 1]),
        ((10,), 4, [4, 4, 2]),
        ((), 4, []),
        ((2, 7), 3, [3, 3, 3]),
    ],
)
def test_sizes_and_order(sizes, batch_size, result):
    found = list(rebatch(each(parts(*sizes)), batch_size))
    total = list(range(sum(sizes)))
    assert [batch.size for batch in found] == result
    assert [name for batch in found for name in batch.names] == [str(row) for row in total]
    assert [label for batch in found for label in batch.labels] == total
    assert [row for batch in found for row in batch.inputs["x"][:, 0]] == total


def test_shapes_that_cannot_be_joined_are_kept_apart():
    batches = [batch_of(0, 3, width=2), batch_of(3, 2, width=5)]
    assert [batch.inputs["x"].shape for batch in rebatch(each(batches), 2)] == [(2, 2), (1, 2), (2, 5)]


def test_source_may_reuse_its_array():
    buffer = np.zeros((3, 1))

    def reusing():
        for value in (1, 2):
            buffer[:] = value
            yield Batch({"x": buffer}, None, ("a",) * 3)

    found = [batch.inputs["x"].ravel().tolist() for batch in rebatch(reusing(), 2)]
    assert found == [[1, 1], [1, 2], [2, 2]]


@pytest.mark.parametrize("samples", [0, -1])
def test_limit_below_one_is_refused(samples):
    with pytest.raises(RecipeValueError, match=f"samples must be at least 1, got {samples}"):
        require_samples(samples)


def test_batch_size_is_checked_before_the_first_batch(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((2, 2)))
    with pytest.raises(RecipeValueError, match="batch_size must be at least 1, got 0"):
        NpyDataset(str(tmp_path / "x.npy")).batches(0)


@each_case("dtype", ["uint8", "int32", "int64", "uint64"])
def test_labels_become_int64(dtype):
    labels = as_labels(np.array([1, 2], dtype), 2, "it")
    assert labels.dtype == np.int64
    assert labels.tolist() == [1, 2]


@pytest.mark.parametrize("shape", [(2,), (2, 3, 3)], ids=["targets", "maps"])
def test_targets_keep_their_dtype_and_shape(shape):
    labels = as_labels(np.full(shape, 0.5, np.float32), 2, "it")
    assert (labels.dtype, labels.shape) == (np.float32, shape)
    assert not is_class_index(labels)


def test_a_target_that_is_not_finite():
    with pytest.raises(LabelError, match="it holds NaN or Inf"):
        as_labels(np.array([1.0, np.nan]), 2, "it")


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (np.array(["a"]), "it has dtype <U1, expected numbers"),
        (np.array(4), r"it has shape \[\], expected one label per sample: \[1\]"),
    ],
    ids=["text", "scalar"],
)
def test_labels_of_no_numbers_or_samples(label, message):
    with pytest.raises(LabelError, match=message):
        as_labels(label, 1, "it")


def test_label_above_int64():
    with pytest.raises(LabelError, match="it has label 18446744073709551615, which does not fit into int64"):
        as_labels(np.array([2**64 - 1], np.uint64), 1, "it")


def test_require_labels_says_what_needs_them(save_npz):
    dataset = NpzDataset(save_npz(x=np.zeros((1, 1))))
    with pytest.raises(LabelError, match=r"metric 'top1' needs labels, and '.*calib\.npz' has none") as error:
        require_labels(dataset, "metric 'top1'")
    assert "one folder for each class" in error.value.hint
