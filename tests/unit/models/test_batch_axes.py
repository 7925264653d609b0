"""The axes of the samples that a model's file tells by itself, and those that it leaves open."""

import numpy as np
import onnx_ir as ir
import pytest

from ptq_cli.core.errors import FixedInputError
from ptq_cli.core.tensors import TensorSpec
from ptq_cli.models.batch_axes import axis_notes, note_axes, told_axes
from ptq_cli.models.fixed_inputs import fix_inputs, fixed_earlier, fixed_value
from tests.each_case import each_case


def model(inputs: str) -> ir.Model:
    return ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["": 20]> g ({inputs}) => (float[N] y) {{ y = Neg(x) }}'
    )


TOLD = {
    "a state": ("float[N, 512] x, float[2, N, 128] state", {"state": 1}),
    "two states and a scalar": (
        "float[N, 8] x, float[2, N, 4] h, float[2, 3, N] c, int64 sr",
        {"h": 1, "c": 2},
    ),
    "one layer": ("float[batch_size, 8] x, float[1, batch_size, 4] h", {"h": 1}),
    "all have it first": ("float[N, S] x, float[N, 4, S] past", {}),
    "no name": ("float[?, 8] x, float[2, ?, 4] h", {}),
    "another name": ("float[N, 8] x, float[2, M, 4] h", {}),
    "twice": ("float[N, 8] x, float[2, N, N] h", {}),
    "two first names": ("float[N, 8] x, float[M, 8] z, float[2, N, 4] h", {}),
    "a first axis that is open": ("float[T, N, 8] x, int64[N] lengths", {}),
    "a batch of one": ("float[N, 3] x, float[1, N, 4] points", {}),
    "an input that has it nowhere": ("float[N, 8] x, float[2, N, 4] h, float[100, 4] table", {}),
    "one input": ("float[2, N] x", {}),
}


@each_case("inputs, told", TOLD.values(), ids=TOLD)
def test_what_sizes_tell(inputs: str, told: dict[str, int]) -> None:
    assert told_axes(model(inputs), {}) == told


STATE = "float[N, 8] x, float[2, N, 4] h, float[100, 4] table"


@each_case(
    "wanted, told",
    [
        ({"table": "none"}, {"h": 1}),
        ({"h": 0, "table": "none"}, {}),
        ({"h": "none", "table": "none"}, {}),
        ({"*": "none"}, {}),
        ({"table": 0}, {}),
    ],
)
def test_what_was_named_is_in_charge(wanted: dict[str, int | str], told: dict[str, int]) -> None:
    assert told_axes(model(STATE), wanted) == told


def test_samples_on_a_named_axis_tell_of_others() -> None:
    assert told_axes(model("float[T, N, 8] x, float[2, N, 4] h"), {"x": 1}) == {"h": 1}


def test_metadata_tell_before_sizes_do() -> None:
    noted = model(STATE)
    note_axes(noted, {"h": 2, "table": "none"}, "m.onnx")
    assert told_axes(noted, {}) == {"h": 2, "table": "none"}
    assert told_axes(noted, {"h": 1}) == {"table": "none"}
    first = model("float[N, 8] x, float[2, N, 4] h")
    note_axes(first, {"h": 0}, "m.onnx")
    assert told_axes(first, {}) == {}
    assert axis_notes({"table": "none"})[0].startswith("'table' has no axis for samples, as the model's file")


TEXT = """<ir_version: 10, opset_import: ["": 20]>
    g (float[n, 2] x, int64 sr, float[n, 2] y) => (float[n, 2] z) {
        a = Cast<to = 1>(sr)
        b = Mul(x, a)
        z = Add(b, y)
    }
"""


def spec(dtype, *shape):
    return TensorSpec("v", np.dtype(dtype), shape)


FITS = {
    "scalar": (16000, spec("int64"), 16000),
    "integer for a float": (2, spec("float32"), 2.0),
    "a whole float for an integer": (2.0, spec("int64"), 2),
    "boolean": (True, spec("bool"), True),
    "repeated": (0, spec("float32", 2, 3), [[0.0] * 3] * 2),
    "repeated row": ([1, 2], spec("float16", 2, 2), [[1.0, 2.0]] * 2),
    "an open size is the value's": ([[1, 2], [3, 4]], spec("int8", None, 2), [[1, 2], [3, 4]]),
    "one of a vector": (5, spec("int32", 1), [5]),
}


@each_case("value, wanted, found", FITS.values(), ids=FITS)
def test_values_take_the_type_and_shape_of_the_input(value, wanted, found):
    array = fixed_value(value, wanted, "m.onnx")
    assert array.dtype == wanted.dtype and array.tolist() == found


REFUSED = {
    "half": (0.5, spec("int64"), "is int64, which cannot hold 0.5"),
    "too large": (300, spec("int8"), "is int8, which cannot hold 300"),
    "negative": (-1, spec("uint8"), "is uint8, which cannot hold -1"),
    "beyond float16": (1e6, spec("float16"), "is float16, which cannot hold 1000000.0"),
    "number for a boolean": (1, spec("bool"), "is bool, which cannot hold 1"),
    "boolean for a number": (True, spec("float32"), "is float32, which cannot hold true"),
    "list for a scalar": ([1], spec("float32"), r"has shape \[\], the value \[1\]"),
    "another length": ([1, 2, 3], spec("float32", 2), r"has shape \[2\], the value \[3\]"),
    "an open size": (0, spec("float32", 2, None), "has shape .* does not say how often it would be repeated"),
}


@each_case("value, wanted, message", REFUSED.values(), ids=REFUSED)
def test_values_that_do_not_fit(value, wanted, message):
    with pytest.raises(
        FixedInputError, match=rf"--set '?model.inputs.v=.*: the input of 'm\.onnx' {message}"
    ) as error:
        fixed_value(value, wanted, "m.onnx")
    assert error.value.hint


def test_the_input_is_gone_and_the_metadata_say_what_it_was():
    model = ir.from_onnx_text(TEXT)
    found = fix_inputs(model, {"sr": 2}, "m.onnx")
    assert found["sr"].dtype == np.int64 and found["sr"].shape == ()
    assert [value.name for value in model.graph.inputs] == ["x", "y"]
    assert fixed_earlier(model) == {"sr": 2}
    assert fix_inputs(model, {"sr": 2}, "m.onnx") == {}
    with pytest.raises(
        FixedInputError, match=r"--set model.inputs.sr=3: in 'm.onnx' this input was fixed to 2"
    ):
        fix_inputs(model, {"sr": 3}, "m.onnx")


def test_an_unknown_name_has_the_nearest():
    with pytest.raises(
        FixedInputError, match=r"'sx', which is not an input of 'm.onnx' \(did you mean"
    ) as error:
        fix_inputs(ir.from_onnx_text(TEXT), {"sx": 2}, "m.onnx")
    assert error.value.hint == "its inputs: x, sr, y"
