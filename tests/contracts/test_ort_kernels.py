"""What a plan for ``ort-cpu`` calls integer, ONNX Runtime computes in integers; the rest as it likes.

A claim of the rule table is measured here for every small graph: the quantized model is optimized by ONNX
Runtime, and no operator that the plan calls integer may be left over in float.
"""

import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.proof.fusion import count_kernels
from ptq_cli.runtime.session import Session
from tests.unit.plan.cases.tables import CASES
from tests.unit.plan.graphs import build, quantized, serialized

INTEGER_RESULT = {
    "QuantizeLinear",
    "QLinearMatMul",
    "QLinearConcat",
    "QLinearAdd",
    "QLinearMul",
    "QLinearConv",
}
INTEGER_RESULT |= {"QLinearSigmoid", "QLinearLeakyRelu", "QLinearAveragePool", "QLinearGlobalAveragePool"}
INTEGER_RESULT |= {"QLinearWhere"}
FLOAT_RESULT = {"DequantizeLinear", "MatMulIntegerToFloat"}
SAME_KERNEL = {"FusedConv": "Conv", "FusedGemm": "Gemm", "FusedMatMul": "MatMul", "NhwcMaxPool": "MaxPool"}
MATRIX = ("Gemm", "MatMul")
LAYOUT = {"Transpose", "Reshape"}
"""ONNX Runtime inserts these itself, on either side of a DequantizeLinear; they are told by their names."""


def optimized(content: bytes) -> onnx.GraphProto:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimized.onnx"
        Session(content, threads=1, save_optimized=path)
        return onnx.load(path).graph


def float_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The nodes that compute in float: their first input is float, and they are no integer kernel."""
    floats = {info.name for info in graph.input if info.type.tensor_type.elem_type == onnx.TensorProto.FLOAT}
    floats |= {item.name for item in graph.initializer if item.data_type == onnx.TensorProto.FLOAT}
    found = []
    for node in graph.node:
        # The ninth input of a QGemm is the scale of its output; without it the output is float.
        if node.op_type in FLOAT_RESULT or (node.op_type == "QGemm" and len(node.input) < 8):
            floats.update(node.output)
        elif node.op_type not in INTEGER_RESULT | {"QGemm"} and any(
            name in floats for name in node.input[:2]
        ):
            floats.update(node.output)
            found.append(node)
    return found


def claimed(plan: Plan, *ops: str) -> int:
    return sum(layer.quantized for layer in plan.layers if layer.op in ops)


@pytest.fixture(scope="module")
def measured():
    found = {}

    def measure(name: str):
        if name not in found:
            model = build(CASES[name].graph)
            plan = make_plan(model, load_target("ort-cpu"))
            content = serialized(quantized(model, plan))
            found[name] = (plan, content, optimized(content))
        return found[name]

    return measure


@pytest.mark.parametrize("name", CASES)
def test_no_integer_layer_is_left_in_float(measured, name):
    plan, _, graph = measured(name)
    integer = {layer.name for layer in plan.layers if layer.quantized}
    assert [node.name for node in float_nodes(graph) if node.name in integer] == []


def test_a_claim_that_is_not_kept_is_seen():
    # Without this rule ONNX Runtime makes a float Gemm of the MatMul and the Add.
    target = load_target("ort-cpu")
    careless = replace(target, op={**target.op, "MatMul": replace(target.op["MatMul"], merged_by=[])})
    model = build(CASES["matmul_residual_2d"].graph)
    plan = make_plan(model, careless)
    content = serialized(quantized(model, plan))
    assert claimed(plan, "MatMul") == 1
    assert [node.op_type for node in float_nodes(optimized(content))] == ["Gemm"]
    assert count_kernels(content).floating["Gemm"] == 1


@pytest.mark.parametrize("name", CASES)
def test_no_more_operators_are_float_than_the_plan_says(measured, name):
    plan, _, graph = measured(name)
    allowed = Counter(layer.op for layer in plan.layers if not layer.quantized)
    found = Counter(SAME_KERNEL.get(node.op_type, node.op_type) for node in float_nodes(graph))
    table = load_target("ort-cpu").op.keys() - LAYOUT
    assert {
        op: count for op, count in found.items() if op in table and count > allowed[op] + extra(op, plan)
    } == {}


def extra(op: str, plan: Plan) -> int:
    # ONNX Runtime takes a HardSwish apart, and makes a float Gemm of a float MatMul and its Add.
    hard_swish = sum(layer.op == "HardSwish" for layer in plan.layers) if op == "Mul" else 0
    matmuls = (
        sum(layer.op == "MatMul" and not layer.quantized for layer in plan.layers) if op == "Gemm" else 0
    )
    return hard_swish + matmuls


@pytest.mark.parametrize("name", CASES)
def test_kernels_are_counted(measured, name):
    plan, content, _ = measured(name)
    counts = count_kernels(content)
    assert counts.integer["Conv"] == claimed(plan, "Conv")
    assert counts.integer["Gemm"] + counts.integer["MatMul"] == claimed(plan, *MATRIX)
    nested = sum("graph of its own" in layer.reason for layer in plan.layers)
    floating = sum(not layer.quantized for layer in plan.layers if layer.op in MATRIX)
    assert counts.floating["Gemm"] + counts.floating["MatMul"] <= floating + nested


JOINS = {
    "Mul": "QLinearMul",
    "Concat": "QLinearConcat",
    "Sigmoid": "QLinearSigmoid",
    "LeakyRelu": "QLinearLeakyRelu",
    "Where": "QLinearWhere",
}
JOINS |= {"AveragePool": "QLinearAveragePool", "GlobalAveragePool": "QLinearGlobalAveragePool"}


@pytest.mark.parametrize("name", CASES)
def test_every_join_is_an_integer_kernel(measured, name):
    plan, _, graph = measured(name)
    found = Counter(node.op_type for node in graph.node)
    assert {op: found[kernel] for op, kernel in JOINS.items()} == {op: claimed(plan, op) for op in JOINS}
    biases = sum(
        layer.op == "Add" and layer.reason.startswith("bias of") for layer in plan.layers if layer.quantized
    )
    assert found["QLinearAdd"] == claimed(plan, "Add") - biases
