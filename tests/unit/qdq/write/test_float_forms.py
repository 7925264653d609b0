"""An Add that ONNX Runtime would merge into a slower kernel is written as a Sum."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.write.float_forms import write_float_forms
from ptq_cli.runtime.session import Session, Written
from tests.each_case import each_case
from tests.unit.plan.graphs import build, quantized, run, sample, serialized

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
