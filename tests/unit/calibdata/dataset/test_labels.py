"""New names of arrays, and those that cannot be."""

import numpy as np
import pytest

from ptq_cli.calibdata.array_files import NpyDataset, NpzDataset
from ptq_cli.calibdata.bind import bind_inputs
from ptq_cli.calibdata.dataset.labels import rename_arrays
from ptq_cli.core.errors import DataNameError, LabelError
from ptq_cli.core.tensors import TensorSpec

A = np.arange(8, dtype=np.float32).reshape(4, 2)


@pytest.fixture
def pair(save_npz):
    return NpzDataset(save_npz(a=A, b=-A, target=np.arange(4)))


def test_two_arrays_change_places_and_one_becomes_the_labels(pair):
    dataset = rename_arrays(pair, {"a": "b", "b": "a", "target": "label"})
    assert (sorted(dataset.specs), dataset.has_labels, dataset.count) == (["a", "b"], True, 4)
    batches = list(dataset.batches(3))
    assert [batch.labels.tolist() for batch in batches] == [[0, 1, 2], [3]]
    assert np.array_equal(batches[0].inputs["b"], A[:3]) and np.array_equal(batches[0].inputs["a"], -A[:3])
    assert dataset.digest() == pair.digest()
    (batch,) = dataset.only(["a"]).batches(4)
    assert list(batch.inputs) == ["a"] and batch.labels.tolist() == [0, 1, 2, 3]


def test_names_that_are_right_already_stay(pair, tmp_path):
    assert rename_arrays(pair, {"x": "a", "y": "label"}) is pair
    np.save(tmp_path / "x.npy", A)
    dataset = NpyDataset(str(tmp_path / "x.npy"))
    assert rename_arrays(dataset, {"image": "x"}) is dataset


def test_a_name_that_is_required_is_in_the_data(pair, tmp_path):
    message = r"--set data.rename.x=a: '.*' has no array 'x'"
    with pytest.raises(DataNameError, match=message) as error:
        rename_arrays(pair, {"x": "a", "target": "label"}, required=["x", "target"])
    assert error.value.hint == "its arrays: 'a', 'b', 'target'"
    np.save(tmp_path / "x.npy", A)
    with pytest.raises(DataNameError, match=r"image=x: the only array of '.*x\.npy' has no name"):
        rename_arrays(NpyDataset(str(tmp_path / "x.npy")), {"image": "x"}, required=["image"])


def test_a_new_name_is_that_of_an_input(pair):
    dataset = rename_arrays(pair, {"a": "x", "b": "y", "target": "label"})
    assert dataset.renamed == {"a": "x", "b": "y", "target": "label"}
    with pytest.raises(DataNameError, match=r"--set data.rename.b=y: the model has no input 'y'") as error:
        bind_inputs(dataset, [TensorSpec("x", np.dtype("float32"), (None, 2))])
    assert error.value.hint == "the model's inputs: 'x'; labels are named 'label'"


REFUSED = {
    "unknown": ({"aa": "x"}, DataNameError, r"has no array 'aa' \(did you mean 'a'\?\)"),
    "two of one name": ({"a": "b"}, DataNameError, "arrays 'a' and 'b' of .* would both be 'b'"),
    "two labels": ({"a": "label", "target": "labels"}, DataNameError, "would both be 'labels'"),
}


@pytest.mark.parametrize(("rename", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_names_that_cannot_be(pair, rename, error, message):
    with pytest.raises(error, match=message):
        rename_arrays(pair, rename)


def test_second_labels_are_refused(save_npz):
    dataset = NpzDataset(save_npz(a=A, label=np.arange(4)))
    with pytest.raises(LabelError, match=r"--set data.rename.a=label: .* has labels already"):
        rename_arrays(dataset, {"a": "label"})
