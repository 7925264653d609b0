import numpy as np
import pytest

from ptq_cli.calibdata.array_files import NpyDataset, NpzDataset
from ptq_cli.calibdata.bind import bind_inputs, fixed_batch_size
from ptq_cli.calibdata.callable_dataset import CallableDataset
from ptq_cli.core.errors import DataNameError, DataShapeError, DataTypeError
from ptq_cli.core.tensors import TensorSpec


def spec(name, *shape, dtype="float32"):
    return TensorSpec(name, np.dtype(dtype), shape)


@pytest.fixture
def images(tmp_path):
    """Six samples of float32 [3, 4], in an array without a name."""
    np.save(tmp_path / "x.npy", np.arange(72, dtype=np.float32).reshape(6, 3, 4))
    return NpyDataset(str(tmp_path / "x.npy"))


@pytest.fixture
def texts(save_npz):
    ids, mask = np.ones((4, 8), np.int64), np.zeros((4, 8), np.int64)
    return NpzDataset(save_npz(input_ids=ids, attention_mask=mask, label=np.arange(4)))


def test_anonymous_array_takes_the_name_of_the_only_input(images):
    bound = bind_inputs(images, [spec("input", None, 3, None)])
    (batch,) = bound.batches(6)
    assert list(batch.inputs) == list(bound.specs) == ["input"]
    assert batch.inputs["input"].shape == (6, 3, 4)
    assert bound.specs["input"] == spec("input", None, 3, 4)


def test_anonymous_array_for_several_inputs(images):
    with pytest.raises(
        DataNameError, match=r"x\.npy' has no name, the model has 2 inputs: 'a', 'b'"
    ) as error:
        bind_inputs(images, [spec("a", None), spec("b", None)])
    assert ".npz with one array for each input" in error.value.hint


def test_the_only_array_is_taken_for_the_only_input_and_that_is_told(save_npz):
    dataset = NpzDataset(save_npz(image=np.ones((4, 3), np.float32), label=np.arange(4)))
    bound = bind_inputs(dataset, [spec("x", None, 3)])
    assert list(next(bound.batches(4)).inputs) == ["x"]
    assert bound.notes == ("the array 'image' of 'calib.npz' is used for the input 'x'",)
    assert bind_inputs(dataset, [spec("image", None, 3)]).notes == ()


def test_missing_array_suggests_the_nearest(texts):
    inputs = [spec("input_id", None, 8, dtype="int64"), spec("attention_mask", None, 8, dtype="int64")]
    message = (
        r"no array for input 'input_id' in '.*calib\.npz', found 'input_ids', 'attention_mask' "
        r"\(did you mean 'input_ids'\?\)"
    )
    with pytest.raises(DataNameError, match=message) as error:
        bind_inputs(texts, inputs)
    assert error.value.hint.endswith("or pass --set data.rename.input_ids=input_id")


def test_unknown_array_names_the_inputs(texts):
    with pytest.raises(
        DataNameError, match=r"array 'attention_mask' of .* is not an input of the model"
    ) as error:
        bind_inputs(texts, [spec("input_ids", None, 8, dtype="int64")])
    assert error.value.hint == (
        "the model's inputs: 'input_ids'; labels are named 'label', or with "
        "--set data.rename.attention_mask=label"
    )


@pytest.mark.parametrize(
    ("wanted", "hint"),
    [
        ((None, 4, 3), "transpose the array: array.transpose(0, 2, 1); "),
        ((None, 4, None), "transpose the array: array.transpose(0, 2, 1); "),
        ((None, 4, 4), "reshape the array; "),
        ((None, None, 5), "reshape the array; "),
    ],
)
def test_axes_in_another_order_are_told_from_other_sizes(images, wanted, hint):
    with pytest.raises(DataShapeError) as error:
        bind_inputs(images, [spec("x", *wanted)])
    assert error.value.hint.startswith(hint)


@pytest.mark.parametrize("dtype", ["float64", "float16", "int64"])
def test_dtype_is_never_converted(images, dtype):
    message = rf"the dtype of input 'x' differs: found float32, expected {dtype}, in '.*x\.npy'"
    with pytest.raises(DataTypeError, match=message) as error:
        bind_inputs(images, [spec("x", None, 3, 4, dtype=dtype)])
    assert error.value.hint == f"save array.astype('{dtype}')"


def test_a_model_that_takes_text_says_so(images):
    with pytest.raises(DataTypeError) as error:
        bind_inputs(images, [spec("x", None, 3, 4, dtype="object")])
    assert error.value.hint.startswith("the model takes text: convert the text to numbers in the data")


def test_fixed_batch_size_of_the_model():
    assert fixed_batch_size([spec("a", None, 3), spec("b")]) is None
    assert fixed_batch_size([spec("a", 4, 3), spec("b", None)]) == 4
    with pytest.raises(DataShapeError, match="inputs fix different batch sizes: 'a' 1, 'b' 4"):
        fixed_batch_size([spec("a", 1), spec("b", 4)])


def test_another_batch_size_is_refused_before_the_first_batch(images):
    bound = bind_inputs(images, [spec("x", 1, 3, 4)])
    with pytest.raises(DataShapeError, match="the model takes batches of 1, but batch_size is 32") as error:
        bound.batches(32)
    assert error.value.hint == "set batch_size = 1, or export the model with a dynamic batch axis"


@pytest.mark.parametrize(("fixed", "hint"), [(4, "set samples = 4"), (8, "add more samples")])
def test_samples_that_are_no_multiple(images, fixed, hint):
    bound = bind_inputs(images, [spec("x", fixed, 3, 4)])
    with pytest.raises(
        DataShapeError, match=f"takes batches of {fixed}, .* has 6 samples, which is not a multiple"
    ) as error:
        bound.batches(fixed)
    assert error.value.hint == hint


LATER = {
    "dtype": (
        "np.ones((2, 3))",
        DataTypeError,
        "found float64, expected float32, in sample 'data.py:batches.2.'",
    ),
    "rank": ("np.ones((2, 3, 1), np.float32)", DataShapeError, "the rank of input 'x' differs"),
    "shape": ("np.ones((2, 4), np.float32)", DataShapeError, r"found \[2, 4\], expected \[\?, 3\]"),
    "name": ("{'y': np.ones((2, 3), np.float32)}", DataNameError, "no array for input 'x' in sample"),
}


@pytest.mark.parametrize(("later", "error", "message"), LATER.values(), ids=LATER.keys())
def test_later_batches_are_checked_too(save_code, later, error, message):
    first = "{'x': np.ones((2, 3), np.float32)}"
    later = later if later.startswith("{") else f"{{'x': {later}}}"
    dataset = CallableDataset(save_code(f"def batches():\n    yield {first}\n    yield {later}"))
    batches = bind_inputs(dataset, [spec("x", None, 3)]).batches(2)
    assert next(batches).size == 2
    with pytest.raises(error, match=message):
        next(batches)
