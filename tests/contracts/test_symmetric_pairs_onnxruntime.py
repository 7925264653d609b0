"""Pairs of symmetric int8 that something moves: ONNX Runtime loads and computes them in every opset."""

import onnx_ir as ir
import pytest

from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from tests.each_case import each_case
from tests.unit.plan.graphs import build, quantized, run, sample, sqnr_db

MOVED = """(float[N,3,8,8] x) => (float[] y) <float[3,3,3,3] w, float[3] b, int64[3] s = {0,-1,4}> {
    c = Conv(x, w, b)
    y = Reshape(c, s) }"""


@each_case("opset", [13, 17, 20, 21, 23])
@each_case("target", ["generic", "tensorrt"])
def test_it_runs_in_every_opset(target: str, opset: int):
    model = build(MOVED, opset)
    result = quantized(model, make_plan(model, load_target(target)))
    inputs = sample(model, seed=20)
    for optimize in (True, False):
        found = run(result, inputs, optimize=optimize)[0]
        assert sqnr_db(run(model, inputs)[0], found) > 30


@pytest.mark.parametrize(("opset", "inputs"), [(20, 3), (21, 2)])
def test_a_zero_point_of_0_is_left_out_where_onnxruntime_needs_that(opset: int, inputs: int):
    model = build(MOVED, opset)
    result = quantized(model, make_plan(model, load_target("generic")))
    behind = [node for node in result.graph if is_activation_pair_end(node)]
    assert {len(node.inputs) for node in behind} == {inputs}


def is_activation_pair_end(node: ir.Node) -> bool:
    source = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
    return node.op_type == "DequantizeLinear" and source is not None and source.op_type == "QuantizeLinear"
