"""An Add that ONNX Runtime would merge into a slower kernel is written as a Sum.

A HardSwish between quantized tensors is written as an Add and a Mul, which have integer kernels.
"""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ptq_cli.plan.multiply_accumulates import multiply_accumulates
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.proof.operators import prove_operators
from ptq_cli.qdq.proof.target_faults import target_faults
from ptq_cli.qdq.write.operator_forms import write_float_forms
from ptq_cli.runtime.engine_registry import find_kernels
from ptq_cli.runtime.session import Session, Written
from tests.each_case import each_case
from tests.unit.plan.graphs import build, quantized, run, sample, serialized
from tests.unit.qdq.printer import graph_text
from tests.unit.qdq.twins import twins_of

BLOCK = """(float[N,5,8] x) => (float[N,5,8] y) <float[8,8] w, float[8] s, float[8] t>
    { m = MatMul(x, w) r = Add(m, x) y = LayerNormalization(r, s, t) }"""


def written(graph: str, target: str = "ort-cpu") -> dict[str, str]:
    model = build(graph)
    write_float_forms(model, make_plan(model, load_target(target)))
    return {node.name or "": node.op_type for node in model.graph}


def kernels(content: bytes, folder: Path) -> list[str]:
    Session(content, threads=1, writes=Written(folder / "optimized.onnx"))
    return [node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node]


def test_onnx_runtime_merges_the_add_and_not_the_sum(tmp_path: Path):
    model = build(BLOCK)
    assert "SkipLayerNormalization" in kernels(serialized(model), tmp_path)
    after = kernels(serialized(quantized(model)), tmp_path)
    assert "SkipLayerNormalization" not in after and "Sum" in after and "LayerNormalization" in after


def test_it_computes_the_same():
    model = build(BLOCK)
    inputs = sample(model, 7)
    changed = ir.from_proto(ir.to_proto(model))
    write_float_forms(changed, make_plan(model, load_target("ort-cpu")))
    one, other = (run(each, inputs, optimize=False)[0] for each in (model, changed))
    assert np.array_equal(one, other)


@each_case(
    "graph",
    [
        BLOCK.replace("Add(m, x)", "Add(m, b)").replace("float[8] t", "float[8] t, float[8] b"),
        BLOCK.replace("LayerNormalization(r, s, t)", "Softmax(r)"),
        BLOCK.replace("y = LayerNormalization(r, s, t)", "y = MatMul(r, w)"),
        BLOCK.replace("y = LayerNormalization(r, s, t)", "q = MatMul(r, w) y = LayerNormalization(q, s, t)"),
    ],
    ids=["bias", "another reader", "integer", "integer, then normalized"],
)
def test_any_other_add_stays_one(graph: str):
    assert "Sum" not in written(graph).values()


def test_a_target_without_the_key_leaves_it():
    assert "Sum" in written(BLOCK).values()
    assert "Sum" not in written(BLOCK, "tensorrt").values()


BOXES = "(float[N,16,4,{last}] x) => (float[N,16,4,{last}] y) {{ y = Softmax<axis = 1>(x) }}"


@pytest.mark.parametrize(("last", "nodes"), [("21", 3), ("W", 4)])
def test_axes_behind_that_of_a_softmax_are_joined(last: str, nodes: int):
    model = build(BOXES.format(last=last))
    inputs = {"x": np.random.default_rng(5).normal(size=(2, 16, 4, 21)).astype(np.float32)}
    changed = ir.from_proto(ir.to_proto(model))
    write_float_forms(changed, make_plan(model, load_target("ort-cpu"), may_be_empty=True))
    assert changed.graph.num_nodes() == nodes
    assert [node.op_type for node in changed.graph if node.name == model.graph[0].name] == ["Reshape"]
    one, other = (run(each, inputs, optimize=False)[0] for each in (model, changed))
    assert np.array_equal(one, other)


@pytest.mark.parametrize("axis", [2, 3, -1])
def test_a_softmax_with_one_axis_behind_it_or_none_stays(axis: int):
    graph = BOXES.format(last=21).replace("axis = 1", f"axis = {axis}")
    assert written_empty(graph) == ["Softmax"]
    assert written_empty(BOXES.format(last=21), "tensorrt") == ["Softmax"]


def written_empty(graph: str, target: str = "ort-cpu") -> list[str]:
    model = build(graph)
    write_float_forms(model, make_plan(model, load_target(target), may_be_empty=True))
    return [node.op_type for node in model.graph]


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
