"""Preparation of models as they come: weights that are moved, several inputs, other types, Q/DQ, opsets."""

import numpy as np
import onnx_ir as ir
import pytest

from ptq_cli.core.tensors import Array
from ptq_cli.models.preparing.prepare_graph import prepare, prepare_model
from tests.each_case import each_case
from tests.unit.models.contents import noise, operators
from tests.unit.plan.graphs import build, run

IDLE = {
    "dropout": "a = Dropout(x)\n y = Relu(a)",
    "dropout_with_a_ratio": "r = Constant<value = float {0.5}>()\n a = Dropout(x, r)\n y = Relu(a)",
    "cast_to_its_type": "a = Cast<to=1>(x)\n y = Relu(a)",
    "identities": "a = Identity(x)\n b = Identity(a)\n y = Relu(b)",
}


@each_case("case", IDLE)
def test_what_computes_nothing_is_removed(case):
    model = build(f"(float[N,4] x) => (float[] y) {{ {IDLE[case]} }}")
    assert operators(prepare(model, "m.onnx")) == ["Relu"]


def test_a_dropout_that_trains_stays():
    text = (
        "(float[N,4] x) => (float[] y) <float r> { t = Constant<value = bool {1}>()\n y = Dropout(x, r, t) }"
    )
    model = build(text, constants={"r": np.array(0.5, np.float32)})
    assert operators(prepare(model, "m.onnx")) == ["Dropout"]


MOVED = {
    "transpose": ("float[8,4] w", "v = Transpose<perm=[1,0]>(w)"),
    "reshape": ("float[32] w", "s = Constant<value = int64[2] {4, 8}>()\n v = Reshape(w, s)"),
    "identity": ("float[4,8] w", "v = Identity(w)"),
    "cast": ("float16[4,8] w", "v = Cast<to=1>(w)"),
    "all": (
        "float16[32] w",
        "a = Identity(w)\n b = Cast<to=1>(a)\n s = Constant<value = int64[2] {8, 4}>()\n c = Reshape(b, s)\n"
        " v = Transpose<perm=[1,0]>(c)",
    ),
    "constant_node": ("float[1] unused", "v = Constant<value = float[4,2] {1,2,3,4,5,6,7,8}>()"),
}


@each_case("case", MOVED)
def test_a_weight_that_is_moved_or_cast_on_its_way_is_folded(case):
    declared, moves = MOVED[case]
    text = f"(float[N,4] x) => (float[] y) <{declared}> {{ {moves}\n y = MatMul(x, v) }}"
    half = {"w": noise(32).astype(np.float16).reshape([4, 8] if case == "cast" else [32])}
    model = build(text, constants=half if "float16" in declared else None)
    expected = run(model, {"x": noise(2, 4)})
    after = prepare(model, "m.onnx")
    assert operators(after) == ["MatMul"]
    assert after.graph.node(0).inputs[1].is_initializer()
    np.testing.assert_allclose(run(after, {"x": noise(2, 4)})[0], expected[0], rtol=1e-6)


def test_a_reshape_to_a_computed_shape_is_valid_in_opset_13():
    # A rule of onnxscript writes an attribute that opset 14 brought.
    text = """(float[N,2,4] x) => (float[N,8] y) { s = Shape(x)\n a = Constant<value = int64 {0}>()
        b = Gather(s, a)\n c = Constant<value = int64[1] {0}>()\n d = Unsqueeze(b, c)
        e = Constant<value = int64[1] {8}>()\n f = Concat<axis=0>(d, e)\n y = Reshape(x, f) }"""
    model = build(text, opset=13)
    after = prepare(model, "m.onnx")
    assert after.opset_imports[""] == 13
    np.testing.assert_array_equal(run(after, {"x": noise(3, 2, 4)})[0], noise(3, 2, 4).reshape(3, 8))


CLIPPED = "c = Clip(x, a, b)\n r = Relu(c)"
DISPLACED = {
    "two_flattens": "(float[M,K] y, float[P,Q] z) { y = Flatten<axis=1>(x)\n z = Flatten<axis=2>(x) }",
    "two_clips": f"""(float[N,3,4] y, float[N,3,4] z) <float a, float b, float d> {{
        {CLIPPED}\n y = Neg(r)\n e = Clip(x, a, d)\n z = Relu(e) }}""",
    "another_with_the_name": f"""(float[N,3,4] y) <float a, float b, float x_max> {{
        {CLIPPED}\n y = Add(r, x_max) }}""",
}


@pytest.mark.parametrize("case", DISPLACED)
def test_constants_that_onnxscript_names_alike_stay_apart(case):
    numbers: dict[str, Array] = {
        name: np.array(number, np.float32)
        for name, number in {"a": -1.0, "b": 0.5, "d": 2.0, "x_max": 7.0}.items()
    }
    model = build(f"(float[N,3,4] x) => {DISPLACED[case]}", opset=17, constants=numbers)
    expected = run(model, {"x": noise(2, 3, 4)})
    after = prepare(model, "m.onnx")
    for found, wanted in zip(run(after, {"x": noise(2, 3, 4)}), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_a_format_in_which_initializers_had_to_be_inputs_is_raised():
    text = "(float[N,3] x, float[3,3] w) => (float[N,3] y) { y = MatMul(x, w) }"
    model = build(text, opset=11)
    weight = model.graph.inputs[1]
    weight.const_value = ir.tensor(noise(3, 3))
    model.graph.register_initializer(weight)
    model.ir_version = 3
    after = prepare(model, "m.onnx")
    assert [value.name for value in after.graph.inputs] == ["x"]
    assert after.ir_version >= 4


def test_a_split_into_a_sequence_is_valid_in_opset_17():
    # onnxscript's folding writes an attribute that opset 18 brought.
    text = """(float[N,4] x) => (float[N,2] y) { k = Constant<value = int64 {1}>()
        s = SplitToSequence<axis=1>(x, k)
        a = Constant<value = int64 {0}>()\n b = Constant<value = int64 {3}>()
        f = SequenceAt(s, a)\n l = SequenceAt(s, b)\n y = Concat<axis=1>(l, f) }"""
    after = prepare(build(text, opset=17), "m.onnx")
    assert "SequenceAt" not in operators(after)
    np.testing.assert_array_equal(run(after, {"x": noise(3, 4)})[0], noise(3, 4)[:, [3, 0]])


OPSET_OF_FORM = {
    "gelu": (
        "<float r, float one, float half> { d = Div(x, r)\n e = Erf(d)\n a = Add(e, one)\n m = Mul(x, a)\n"
        " y = Mul(m, half) }",
        {"r": 1.4142135, "one": 1.0, "half": 0.5},
        20,
        ["Gelu"],
    ),
    "hard_sigmoid": (
        "{ a = HardSigmoid<alpha=0.16666667, beta=0.5>(x)\n y = Mul(x, a) }",
        {},
        14,
        ["HardSwish"],
    ),
    "silu": ("{ a = Sigmoid(x)\n y = Mul(x, a) }", {}, 13, ["Sigmoid", "Mul"]),
}


@pytest.mark.parametrize("case", OPSET_OF_FORM)
def test_the_opset_rises_only_where_a_form_needs_it(case):
    body, numbers, opset, expected = OPSET_OF_FORM[case]
    constants: dict[str, Array] = {name: np.array(number, np.float32) for name, number in numbers.items()}
    model = build(f"(float[N,4] x) => (float[] y) {body}", opset=13, constants=constants)
    before = run(model, {"x": noise(2, 4)}, optimize=False)
    prepared = prepare_model(model, "m.onnx")
    assert (prepared.opset_before, prepared.opset) == (13, opset)
    assert operators(prepared.model) == expected
    np.testing.assert_allclose(
        run(prepared.model, {"x": noise(2, 4)}, optimize=False)[0], before[0], atol=2e-6
    )
