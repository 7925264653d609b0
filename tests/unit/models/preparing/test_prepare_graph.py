"""What preparation folds, in exported and in foreign graphs."""

import numpy as np
import onnx
import onnx_ir as ir

from ptq_cli.models.preparing.layer_names import name_graph
from ptq_cli.models.preparing.prepare_graph import prepare
from tests.each_case import each_case
from tests.unit.models.contents import names, noise, operators
from tests.unit.plan.graphs import build, run


def test_constants_become_initializers_and_no_initializer_is_an_input():
    model = build(
        """(float[N,4] x, float[4,4] w) => (float[] y) <float[4,4] w> {
            c = Constant<value = float[4] {1, 2, 3, 4}>()
            d = Add(c, c)
            h = MatMul(x, w)
            y = Sub(h, d) }"""
    )
    before = run(model, {"x": noise(2, 4)})
    after = prepare(model, "m.onnx")
    assert operators(after) == ["MatMul", "Sub"]
    assert [value.name for value in after.graph.inputs] == ["x"]
    np.testing.assert_array_equal(run(after, {"x": noise(2, 4)})[0], before[0])


def test_equal_constants_of_any_size_become_one() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (int64[N] ids) => (float[N,90] y) {
        rows = Gather(table, ids)
        y = Gemm<transB = 1>(rows, head) }"""
    parsed = onnx.parser.parse_model(text)
    values = np.random.default_rng(0).normal(size=(90, 40)).astype(np.float32)
    for name in ("table", "head"):
        parsed.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    assert list(prepare(ir.from_proto(parsed), "m.onnx").graph.initializers) == ["table"]


def test_nodes_of_a_foreign_model_keep_their_names_and_get_their_own():
    model = build("(float[N,4] x) => (float[] y) { [same] a = Relu(x)\n [same] b = Neg(a)\n y = Abs(b) }")
    model.graph.node(2).name = ""
    name_graph(model)
    assert names(model) == ["same", "same_2", "Abs"]


SHARED = {
    "an_output_and_an_identity_of_it": "(float[N,4] y, float[N,4] o) { y = Relu(x)\n o = Identity(y) }",
    "two_identities": "(float[N,4] o, float[N,4] p) { y = Relu(x)\n o = Identity(y)\n p = Identity(y) }",
    "operators_that_are_equal": "(float[N,4] o, float[N,4] p) { o = Relu(x)\n p = Relu(x) }",
    "one_output_twice": "(float[N,4] o, float[N,4] o) { o = Relu(x) }",
    "the_input_itself": "(float[N,4] o, float[N,4] x) { o = Relu(x) }",
    "an_identity_of_the_input": "(float[N,4] o, float[N,4] p) { o = Relu(x)\n p = Identity(x) }",
}


@each_case("case", SHARED)
def test_outputs_that_hold_one_value_keep_their_names(case):
    model = build(f"(float[N,4] x) => {SHARED[case]}")
    names = [value.name for value in model.graph.outputs]
    expected = run(model, {"x": noise(3, 4)})
    after = prepare(model, "m.onnx")
    assert [value.name for value in after.graph.inputs] == ["x"]
    assert [value.name for value in after.graph.outputs] == names
    for found, wanted in zip(run(after, {"x": noise(3, 4)}), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_an_input_in_float16_that_is_an_output_too_stays_float16():
    text = "(float16[N,4] x) => (float16[N,4] o, float16[N,4] x) { o = Relu(x) }"
    after = prepare(build(text), "m.onnx")
    assert [value.name for value in after.graph.outputs] == ["o", "x"]
    half = noise(3, 4).astype(np.float16)
    np.testing.assert_array_equal(run(after, {"x": half})[1], half)


def test_an_output_keeps_the_shape_that_inference_does_not_find():
    text = """(float[N,4] x) => (float[N,4] y, float[N,4] z) <float[4] s, float[4] b> {
        g = GroupNormalization<num_groups=2>(x, s, b) h = Softmax(g) y = Relu(h) z = Softmax(g) }"""
    outputs = prepare(build(text, 21), "m").graph.outputs
    assert [str(value.shape) for value in outputs] == ["[N,4]", "[N,4]"]
