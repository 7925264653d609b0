import numpy as np
import pytest

from ptq_cli.calibdata.array_files import NpzDataset
from ptq_cli.calibdata.dataset.labels import as_labels, find_label, is_class_index, require_labels
from ptq_cli.core.errors import LabelError
from tests.each_case import each_case


@pytest.mark.parametrize("name", ["label", "labels"])
def test_both_names_are_known(name):
    assert find_label(["x", name], "it") == name


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


def test_masks_are_labels():
    assert as_labels(np.ones((2, 3, 3), np.uint8), 2, "it").shape == (2, 3, 3)


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
