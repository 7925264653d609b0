"""A SiLU between integers is written as QuickGelu where the target allows operators of the runtime's own."""

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from ptq_cli.latency.measure_profile import measure_profile
from ptq_cli.plan.multiply_accumulates import multiply_accumulates
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.refusals import QUICKER_SILU
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.proof.operators import prove_operators
from ptq_cli.qdq.proof.target_faults import structure_faults, target_faults
from ptq_cli.qdq.read.quantized_file import spelled_out
from ptq_cli.qdq.write.operator_forms import write_runtime_operators
from ptq_cli.runtime.engine_registry import find_kernels
from tests.each_case import each_case
from tests.unit.plan.graphs import build, quantized, run, sample, sqnr_db
from tests.unit.qdq.printer import graph_text
from tests.unit.qdq.twins import twins_of

PORTABLE = load_target("ort-cpu")
TARGET = replace(PORTABLE, runtime_operators=True)
GATED = """(float[N,3,8,8] x) => (float[N,4,6,6] y) <float[16,3,3,3] w, float[4,16,1,1] v> {
    c = Conv(x, w) s = Sigmoid(c) m = Mul(c, s) y = Conv(m, v) }"""
OTHERS = {
    "another reader of the Sigmoid": GATED.replace("y = Conv(m, v)", "p = Add(m, s) y = Conv(p, v)"),
    "the Sigmoid of another": GATED.replace("s = Sigmoid(c)", "r = Neg(c) s = Sigmoid(r)"),
    "a float value": """(float[N,16,6,6] x) => (float[N,4,6,6] y) <float[4,16,1,1] v> {
        n = Neg(x) s = Sigmoid(n) m = Mul(s, n) y = Conv(m, v) }""",
}


def with_own_operators(model: ir.Model) -> ir.Model:
    plan = make_plan(model, TARGET)
    own = quantized(model, plan)
    write_runtime_operators(own, plan)
    assert list(structure_faults(own)) == []
    return own


def test_the_graph_before_and_after():
    model = build(GATED)
    assert "[s] s = Sigmoid(c) [m] m = Mul(c, s)" in " ".join(graph_text(model).split())
    text = graph_text(with_own_operators(model))
    assert "QuickGelu" in text and "Sigmoid(" not in text and "Mul(" not in text
    portable = graph_text(quantized(model, make_plan(model, PORTABLE)))
    assert "QuickGelu" not in portable and "Sigmoid(" in portable


@each_case("spread", [0.3, 1.0, 20.0])
@each_case("swapped", [False, True], ids=["x s", "s x"])
def test_it_is_nearer_the_float_model_than_integers_are(spread: float, swapped: bool):
    weight = spread * np.random.default_rng(0).standard_normal((16, 3, 3, 3)).astype(np.float32)
    graph = GATED.replace("Mul(c, s)", "Mul(s, c)") if swapped else GATED
    model = build(graph, constants={"w": weight})
    inputs = sample(model, 3)
    wanted = run(model, inputs)[0]
    own, portable = (
        run(item, inputs)[0]
        for item in (with_own_operators(model), quantized(model, make_plan(model, PORTABLE)))
    )
    assert sqnr_db(wanted, own) > max(30.0, sqnr_db(wanted, portable) - 0.3)


def test_a_swish_keeps_its_alpha():
    pytest.importorskip("onnx", minversion="1.20")
    graph = GATED.replace("s = Sigmoid(c) m = Mul(c, s)", "m = Swish<alpha=1.5>(c)")
    model = build(graph, opset=24)
    own = with_own_operators(model)
    [node] = [item for item in own.graph if item.op_type == "QuickGelu"]
    assert node.attributes.get_float("alpha", 0.0) == 1.5
    assert "Swish" not in graph_text(own)


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_left_as_they_are(name: str):
    model = build(OTHERS[name])
    assert "QuickGelu" not in graph_text(with_own_operators(model))


def test_kernels_reasons_and_structure_know_it():
    model = build(GATED)
    own = with_own_operators(model)
    assert list(target_faults(own, TARGET)) == list(target_faults(own, PORTABLE)) == []
    for kernels in (None, find_kernels(own)):
        proofs = {
            proof.name: proof
            for proof in prove_operators(own, PORTABLE, multiply_accumulates(own, {}), kernels)
        }
        assert set(proofs) == {"c", "m", "y"}
        assert (proofs["m"].op, proofs["m"].placement, proofs["m"].reason) == (
            "QuickGelu",
            "float",
            QUICKER_SILU,
        )
        assert proofs["c"].placement == "integer"
    layers = {layer.name: layer for layer in make_plan(model, TARGET).layers}
    assert [(layers[name].quantized, layers[name].reason) for name in "sm"] == [(False, QUICKER_SILU)] * 2
    assert layers["m"].written_as == "QuickGelu" and layers["s"].written_as == ""


def test_layers_are_found_again_in_both_models():
    model = build(GATED)
    plan = make_plan(model, TARGET)
    integer = {layer.name for layer in plan.layers if layer.quantized}
    own = with_own_operators(model)
    twins = twins_of(model, spelled_out(own.clone(), model), integer)
    assert list(twins.graphs.pairs) == ["x", "c", "m", "y"]
    whole = twins.staged.run(sample(model), quantized=True)["y"]
    assert sqnr_db(run(own, sample(model))[0], twins.staged.floats("y", whole)) > 40
    assert graph_text(spelled_out(own, model)) == graph_text(quantized(model, plan))


def test_its_conversions_belong_to_it_in_a_profile():
    model = build(GATED)
    batch = sample(model)
    profile = measure_profile(
        model, make_plan(model, TARGET), TARGET, [batch], batch=4, threads=1, seconds=0.2
    )
    assert profile.nodes["m"].integer > 0 and profile.nodes["s"].integer == 0
