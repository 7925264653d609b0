from collections import namedtuple

import numpy as np
import pytest
import torch

from ptq_cli.calibdata.callable_dataset import as_batch
from ptq_cli.core.errors import DataFormatError, DataShapeError, EmptyDataError, LabelError
from tests.each_case import each_case


def batch_from(value):
    return as_batch(value, "batch 2 of 'data.py:f'", "data.py:f", 10)


class TensorLike:
    """What torch's tensors offer, without torch."""

    def __init__(self, values, error=None):
        self.values, self.error = values, error

    def __array__(self, dtype=None, copy=None):
        if self.error is not None:
            raise self.error
        return np.asarray(self.values, dtype)


def test_one_array_is_anonymous():
    batch = batch_from(np.ones((2, 3)))
    assert list(batch.inputs) == [""]
    assert batch.names == ("data.py:f[10]", "data.py:f[11]")
    assert batch.labels is None


@pytest.mark.parametrize("name", ["label", "labels"])
def test_dict_with_labels(name):
    batch = batch_from({"x": np.ones((2, 3)), name: np.array([4, 5], np.int32)})
    assert list(batch.inputs) == ["x"]
    assert batch.labels.tolist() == [4, 5]
    assert batch.labels.dtype == np.int64


def test_tensors_of_other_libraries_are_accepted():
    assert batch_from(TensorLike([[1.0, 2.0]])).inputs[""].tolist() == [[1.0, 2.0]]


def test_tensor_that_cannot_be_converted():
    value = {"x": TensorLike([], RuntimeError("requires grad"))}
    with pytest.raises(
        DataFormatError, match=r"array 'x' of batch 2 .* RuntimeError: requires grad"
    ) as error:
        batch_from(value)
    assert "tensor.detach().cpu()" in error.value.hint


def test_arrays_become_contiguous_and_native():
    array = batch_from(np.arange(6, dtype=">i4").reshape(2, 3).T).inputs[""]
    assert array.flags.c_contiguous
    assert array.dtype == np.dtype("int32")
    assert array.tolist() == [[0, 3], [1, 4], [2, 5]]


NO_ARRAYS = {
    "list": (
        [1, 2],
        "batch 2 of 'data.py:f' is a list, expected a dict of arrays by input name, a tuple of arrays",
    ),
    "none": (None, "batch 2 of 'data.py:f' is a NoneType"),
    "text_in_dict": ({"x": "hello"}, "array 'x' of batch 2 of 'data.py:f' is a str"),
    "number": (3.0, "is a float"),
    "key": ({3: np.ones(2)}, "has the key 3, expected the name of an input"),
    "objects": (np.array([{}, None], dtype=object), "has dtype object, expected numbers"),
    "texts": (np.array(["a"]), "has dtype <U1, expected numbers"),
}


@each_case("value, message", NO_ARRAYS.values(), ids=NO_ARRAYS.keys())
def test_what_is_no_array_is_named(value, message):
    with pytest.raises(DataFormatError, match=message):
        batch_from(value)


Named = namedtuple("Named", ["x", "label"])
X, Y = np.ones((2, 3)), np.zeros(2, int)
FORMS = {
    "pair": ((X, Y), ["#0", "#1"], False),
    "list of three": ([X, X, Y], ["#0", "#1", "#2"], False),
    "one in a tuple": ((X,), [""], False),
    "named tuple": (Named(X, Y), ["x"], True),
    "dict and label": (({"x": X}, Y), ["x"], True),
    "tuple and label": (((X, X), Y), ["#0", "#1"], True),
    "a scalar beside": ({"x": X, "sr": 8}, ["x", "sr"], False),
    "tensors": ((torch.ones(2, 3, requires_grad=True), torch.zeros(2)), ["#0", "#1"], False),
}


@each_case("value, names, labeled", FORMS.values(), ids=FORMS)
def test_forms_of_a_batch(value, names, labeled):
    batch = batch_from(value)
    assert (list(batch.inputs), batch.labels is not None, batch.size) == (names, labeled, 2)


def test_samples_on_another_axis_and_whole_arrays():
    value = {"x": np.ones((2, 3)), "state": np.ones((4, 2, 5)), "table": np.ones((7, 3))}
    batch = as_batch(value, "batch 0", "data", 0, {"state": 1, "table": None})
    assert batch.size == 2 and batch.axes == {"state": 1, "table": None}
    step = as_batch(value, "batch 0", "data", 0, dict.fromkeys(value))
    assert step.size == 1 and step.names == ("data[0]",)
    with pytest.raises(
        DataShapeError, match="differ in the number of samples: 'x' has 2, 'state' has 4"
    ) as error:
        batch_from(value)
    for setting in ("--batch-axis state=1", "--batch-axis state=none", "--input"):
        assert setting in error.value.hint


def test_single_value_has_no_samples():
    with pytest.raises(DataShapeError, match="is a single value, expected an axis for the samples"):
        batch_from(np.float32(3))


def test_arrays_must_agree_on_the_samples():
    with pytest.raises(DataShapeError, match=r"arrays of batch 2 .*: 'a' has 2, 'b' has 3"):
        batch_from({"a": np.ones(2), "b": np.ones(3)})


def test_labels_must_be_one_a_sample():
    with pytest.raises(LabelError, match=r"array 'label' of batch 2 .* has 3 labels for 2 samples"):
        batch_from({"x": np.ones(2), "label": np.zeros(3, int)})


@pytest.mark.parametrize("value", [{}, {"label": np.zeros(2, int)}, np.ones((0, 3))])
def test_batch_without_values(value):
    with pytest.raises(EmptyDataError, match=r"batch 2 of 'data.py:f' has no"):
        batch_from(value)


def test_a_batch_keeps_its_values_when_the_array_is_filled_again():
    array = np.zeros((2, 3), np.float32)
    batch = as_batch({"x": array}, "batch 0", "data", 0)

    array[:] = 7

    assert not batch.inputs["x"].any()
