"""Models that hold Q/DQ already: what is there is kept, the rest is quantized, nothing twice."""

import numpy as np
import pytest

from ptq_cli.core.errors import NothingToQuantizeError
from ptq_cli.core.tensors import Array
from ptq_cli.models.preparing.prepare_graph import prepare
from ptq_cli.plan.planner import make_plan
from tests.unit.models.contents import operators
from tests.unit.plan.graphs import build, quantized

CONSTANTS: dict[str, Array] = {
    "s": np.array(0.03, np.float32),
    "z": np.array(128, np.uint8),
    "w": np.random.default_rng(0).integers(-127, 128, (8, 8)).astype(np.int8),
    "ws": np.array(0.01, np.float32),
}
ALL_QUANTIZED = """(float[N,8] x) => (float[] y) <float s, uint8 z, int8[8,8] w, float ws> {
    q = QuantizeLinear(x, s, z)
    d = DequantizeLinear(q, s, z)
    e = DequantizeLinear(w, ws)
    h = MatMul(d, e)
    r = Relu(h)
    y = Tanh(r) }"""
OUTPUT_QUANTIZED = """(float[N,8] x) => (float[] y) <float s, uint8 z, float[8,8] v, float[8,8] u> {
    h = MatMul(x, v)
    q = QuantizeLinear(h, s, z)
    d = DequantizeLinear(q, s, z)
    r = Tanh(d)
    y = MatMul(r, u) }"""


def test_a_result_that_is_quantized_already_is_not_quantized_again(target):
    model = prepare(build(OUTPUT_QUANTIZED, constants=CONSTANTS), "m.onnx")
    plan = make_plan(model, target)
    reasons = {layer.name: layer.reason for layer in plan.layers}
    assert reasons["h"] == "already quantized: QuantizeLinear 'q' reads its result"
    assert "h" not in plan.activations and "d" not in plan.activations
    assert list(plan.activations) == ["r"]
    assert operators(quantized(model, plan)).count("QuantizeLinear") == 2


NOTHING_LEFT = {
    "all": ALL_QUANTIZED,
    "alone": """(float[N,8] x) => (uint8[] y) <float s, uint8 z, float[8,8] v> {
        h = MatMul(x, v)
        y = QuantizeLinear(h, s, z) }""",
    "at_run_time": """(float[N,8] x) => (float[] y) <float[8,8] v> {
        q, s, z = DynamicQuantizeLinear(x)
        d = DequantizeLinear(q, s, z)
        y = MatMul(d, v) }""",
}


@pytest.mark.parametrize("name", NOTHING_LEFT)
def test_what_cannot_be_kept_beside_new_pairs_is_refused(name, target):
    model = prepare(build(NOTHING_LEFT[name], constants=CONSTANTS), "m.onnx")
    with pytest.raises(NothingToQuantizeError, match="the model is already quantized: it has") as caught:
        make_plan(model, target)
    assert caught.value.hint == "pass the float model that it was made from"


def test_a_quantized_model_of_ours_is_refused(target):
    model = build("(float[N,8] x) => (float[] y) <float[8,8] w> { y = MatMul(x, w) }")
    once = prepare(quantized(model, make_plan(model, target)), "m.onnx")
    with pytest.raises(NothingToQuantizeError, match="the model is already quantized"):
        make_plan(once, target)
