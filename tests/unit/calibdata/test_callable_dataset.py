from collections import namedtuple
from functools import partial

import numpy as np
import pytest
import torch

from ptq_cli.calibdata.callable_dataset import CallableDataset, as_arrays
from ptq_cli.calibdata.dataset.batches import indexed_names
from ptq_cli.calibdata.dataset.items import batch_of
from ptq_cli.core.errors import (
    DataFormatError,
    DataShapeError,
    EmptyDataError,
    EntryPointError,
    InputFileError,
    LabelError,
)
from tests.each_case import each_case

COUNTING = """
def batches():
    for start in (0, 3):
        x = np.arange(start, start + 3, dtype=np.float32)[:, None]
        yield {"x": x, "label": np.arange(start, start + 3)}
"""


def test_what_is_known_before_iterating(save_code):
    dataset = CallableDataset(save_code(COUNTING))
    assert (dataset.count, dataset.has_labels, dataset.class_names) == (None, True, ())
    assert [str(spec) for spec in dataset.specs.values()] == ["x: float32[?, 1]"]


@pytest.mark.parametrize("samples", [1, 3, 4, 6, 100])
def test_samples_limit(save_code, samples):
    dataset = CallableDataset(save_code(COUNTING), samples)
    found = [int(label) for batch in dataset.batches(4) for label in batch.labels]
    assert found == list(range(min(samples, 6)))


def test_no_more_is_pulled_than_the_limit_needs(save_code):
    source = save_code("def batches():\n    yield np.ones((2, 1))\n    raise ValueError('one too many')")
    assert [batch.size for batch in CallableDataset(source, samples=2).batches(32)] == [2]


def test_one_generator_for_all_calls_is_refused(save_code):
    dataset = CallableDataset(save_code("it = iter([np.ones((2, 1))] * 3)\ndef batches(): return it"))
    with pytest.raises(
        DataFormatError, match="returned the same iterator twice, and its first batch is used up"
    ):
        next(dataset.batches(1))


RETURNED = {
    "array": ("np.ones((2, 3))", "returned a ndarray, expected an iterable of batches"),
    "dict": ("{'x': np.ones((2, 3))}", "returned a dict, expected an iterable"),
    "none": ("None", "returned a NoneType, expected an iterable"),
    "text": ("'calib.npz'", "returned a str, expected an iterable"),
}


@pytest.mark.parametrize(("value", "message"), RETURNED.values(), ids=RETURNED.keys())
def test_result_that_is_no_iterable_of_batches(save_code, value, message):
    with pytest.raises(DataFormatError, match=message):
        CallableDataset(save_code(f"def batches(): return {value}"))


RAISING = {
    "when_called": ("def batches(): return 1 / 0", "raised when called: ZeroDivisionError: division by zero"),
    "needs_arguments": ("def batches(folder): yield folder", "raised when called: TypeError: .*'folder'"),
    "first_batch": ("def batches():\n    yield {}['x']", "raised in batch 0: KeyError: 'x'"),
}


@pytest.mark.parametrize(("body", "message"), RAISING.values(), ids=RAISING.keys())
def test_errors_of_the_users_code(save_code, body, message):
    with pytest.raises(EntryPointError, match=rf"data '.*data\.py:batches' {message}"):
        CallableDataset(save_code(body))


def test_labels_that_stop(save_code):
    body = (
        "def batches():\n    yield {'x': np.ones(1), 'label': np.ones(1, int)}\n    yield {'x': np.ones(1)}"
    )
    with pytest.raises(LabelError, match=r"batch 1 of .* has no labels, unlike the first batch"):
        list(CallableDataset(save_code(body)).batches(1))


def test_no_batch_at_all(save_code):
    with pytest.raises(EmptyDataError, match="yields no batches"):
        CallableDataset(save_code("def batches(): return []"))


def test_later_batch_that_is_no_array_has_its_number(save_code):
    dataset = CallableDataset(save_code("def batches(): return [np.ones((2, 1)), [3]]"))
    with pytest.raises(DataFormatError, match=r"batch 1 of .* is a list"):
        list(dataset.batches(2))


def test_digest_is_of_the_text_and_the_name(save_code, tmp_path):
    source = save_code(COUNTING + "\nother = batches")
    digest = CallableDataset(source).digest()
    assert CallableDataset(source, samples=1).digest() == digest
    assert CallableDataset(source.replace(":batches", ":other")).digest() != digest
    save_code(COUNTING + "\n# changed")
    assert CallableDataset(source).digest() != digest


def test_digest_of_a_file_that_vanished(save_code, tmp_path):
    dataset = CallableDataset(save_code(COUNTING))
    (tmp_path / "data.py").unlink()
    with pytest.raises(InputFileError, match="cannot be read: No such file"):
        dataset.digest()


def test_missing_callable_suggests(save_code):
    with pytest.raises(EntryPointError, match=r"has no 'batchs' .did you mean 'batches'"):
        CallableDataset(save_code(COUNTING).replace(":batches", ":batchs"))


def batch_from(value, axes=None, where="batch 2 of 'data.py:f'"):
    return batch_of(*as_arrays(value, where), where, partial(indexed_names, "data", 0), axes)


class TensorLike:
    """What torch's tensors offer, without torch."""

    def __init__(self, values, error=None):
        self.values, self.error = values, error

    def __array__(self, dtype=None, copy=None):
        if self.error is not None:
            raise self.error
        return np.asarray(self.values, dtype)


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
    batch = batch_from(value, {"state": 1, "table": None})
    assert batch.size == 2 and batch.axes == {"state": 1, "table": None}
    step = batch_from(value, dict.fromkeys(value))
    assert step.size == 1 and step.names == ("data[0]",)
    with pytest.raises(
        DataShapeError, match="differ in the number of samples: 'x' has 2, 'state' has 4"
    ) as error:
        batch_from(value)
    for setting in (
        "--set data.batch_axis.state=1",
        "--set data.batch_axis.state=none",
        "--set model.inputs",
    ):
        assert setting in error.value.hint


def test_single_value_has_no_samples():
    with pytest.raises(DataShapeError, match="is a single value, expected an axis for the samples"):
        batch_from(np.float32(3))


def test_labels_must_be_one_a_sample():
    with pytest.raises(LabelError, match=r"array 'label' of batch 2 .* has 3 labels for 2 samples"):
        batch_from({"x": np.ones(2), "label": np.zeros(3, int)})


@pytest.mark.parametrize("value", [{}, {"label": np.zeros(2, int)}, np.ones((0, 3))])
def test_batch_without_values(value):
    with pytest.raises(EmptyDataError, match=r"batch 2 of 'data.py:f' has no"):
        batch_from(value)


def test_a_batch_keeps_its_values_when_the_array_is_filled_again():
    array = np.zeros((2, 3), np.float32)
    batch = batch_from({"x": array})
    array[:] = 7
    assert not batch.inputs["x"].any()
