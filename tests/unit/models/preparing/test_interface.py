"""Whoever calls a prepared model asks for its inputs and outputs by the names that the file has."""

import numpy as np

from ptq_cli.models.preparing.prepare_graph import prepare
from tests.each_case import each_case
from tests.unit.models.loading.sources import noise
from tests.unit.plan.graphs import build, run

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
