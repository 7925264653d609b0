"""A HardSwish between quantized tensors is written as an Add and a Mul, which have integer kernels."""

import numpy as np
import pytest

from ptq_cli.plan.multiply_accumulates import multiply_accumulates
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.proof.operators import prove_operators
from ptq_cli.qdq.proof.target_faults import target_faults
from ptq_cli.runtime.onnxruntime_engine import find_kernels
from tests.unit.plan.graphs import build, quantized, run, sample
from tests.unit.qdq.printer import graph_text
from tests.unit.qdq.twins import twins_of

GATED = """(float[N,3,8,8] x) => (float[N,4,6,6] y) <float[16,3,3,3] w, float[4,16,1,1] v> {
    c = Conv(x, w) h = HardSwish(c) y = Conv(h, v) }"""
TARGET = load_target("ort-cpu")
FOREIGN = """(float[N,4] x) => (float[N,4] y) <float s = {0.02}, uint8 z = {128}> {
    q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) h = HardSwish(d)
    r = QuantizeLinear(h, s, z) y = DequantizeLinear(r, s, z) }"""


def test_graph_between_the_pairs():
    text = graph_text(quantized(build(GATED)))
    assert "HardSwish(" not in text
    assert "[h/Add]" in text and "[h] h = Mul(" in text


def test_its_kernels_are_integer_and_the_structure_is_correct():
    model = quantized(build(GATED))
    proofs = prove_operators(model, TARGET, multiply_accumulates(model, {}), find_kernels(model))
    assert {proof.name: proof.kernel for proof in proofs if "h" in proof.name} == {
        "h/Add": "QLinearAdd", "h": "QLinearMul",
    }  # fmt: skip
    assert list(target_faults(model, TARGET)) == []


@pytest.mark.parametrize("spread", [0.1, 1.0, 20.0])
def test_it_is_near_the_float_operator(spread: float):
    # Inputs below -3, in the curve, and above 3.
    weight = spread * np.random.default_rng(0).standard_normal((16, 3, 3, 3)).astype(np.float32)
    model = build(GATED, constants={"w": weight})
    inputs = sample(model)
    found, wanted = (run(item, inputs, optimize=False)[0] for item in (quantized(model), model))
    assert np.mean((found - wanted) ** 2) < 10**-2.8 * np.mean(wanted**2)  # 28 dB


def test_layers_are_found_again_in_both_models():
    model = build(GATED)
    plan = make_plan(model, TARGET)
    twins = twins_of(model, quantized(model, plan), {layer.name for layer in plan.layers if layer.quantized})
    assert list(twins.graphs.pairs) == ["x", "c", "h", "y"]
    assert set(twins.staged.layers) == {"c", "h", "y"}
    whole = twins.staged.run(sample(model), quantized=True)["y"]
    expected = run(quantized(model, plan), sample(model), optimize=True)[0]
    assert np.array_equal(twins.staged.floats("y", whole), expected)


def test_one_between_the_pairs_of_another_tool_is_reported_as_float():
    model = build(FOREIGN)
    [proof] = prove_operators(model, TARGET, multiply_accumulates(model, {}), None)
    assert (proof.placement, proof.reason) == (
        "float", "there is no integer HardSwish; ptq writes one between quantized tensors as Add and Mul",
    )  # fmt: skip
