"""The axes of the samples that a model's file tells by itself, and those that it leaves open."""

import onnx_ir as ir

from ptq_cli.models.batch_axes import axis_notes, note_axes, told_axes
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
