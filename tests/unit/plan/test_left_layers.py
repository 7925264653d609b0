"""Models that hold Q/DQ already: what is there is kept, the rest is quantized, nothing twice.

Layers of nested graphs that stay float, and why.
"""

import numpy as np
import pytest

from ptq_cli.core.errors import NothingToQuantizeError
from ptq_cli.core.tensors import Array
from ptq_cli.models.preparing.prepare_graph import prepare
from ptq_cli.plan.left_layers import layers_never_run
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
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


IF = """(float[N,4] x, bool c) => (float[N,4] y) <float[4,4] w> {
    [stem] h = MatMul(x, w)
    [gate] y = If(c) <then_branch = t () => (float[N,4] a) { [deep] a = MatMul(h, w) },
                      else_branch = e () => (float[N,4] b) { [shallow] b = Neg(h) }> }"""
SCAN = """(float[3,4] x) => (float[4] f, float[4,3] y) <float[4,4] w, float[4] z> {
    [stem] h = MatMul(x, w)
    [scan] f, y = Scan<num_scan_inputs = 1, scan_output_axes = [1],
        body = b (float[4] s, float[4] e) => (float[4] t, float[4] o) {
            [cell] t = MatMul(s, w)
            [sum] o = Add(t, e) }>(z, h) }"""
UNKNOWN = "how target tensorrt treats pairs in a nested graph is not known"


@pytest.mark.parametrize(
    ("graph", "target", "layer", "reason"),
    [
        (IF, "tensorrt", "deep", f"is inside If 'gate': {UNKNOWN}"),
        (
            SCAN,
            "ort-cpu",
            "cell",
            "is inside Scan 'scan', which stacks its results along another axis than the first: they are not "
            "measured",
        ),
    ],
    ids=["another runtime", "stacked along another axis"],
)
def test_a_layer_says_why_it_stays_float(graph: str, target: str, layer: str, reason: str) -> None:
    plan = make_plan(build(graph), load_target(target))
    layers = {item.name: item for item in plan.layers}
    assert (layers[layer].quantized, layers[layer].reason) == (False, reason)
    assert layers["stem"].quantized
    assert {site.node for site in plan.weights} == {"stem"}


def test_what_was_never_run_is_told_by_its_tensors() -> None:
    graph = build(IF).graph
    assert layers_never_run(graph, ["h"]) == {}
    assert list(layers_never_run(graph, ["a"])) == ["deep"]
