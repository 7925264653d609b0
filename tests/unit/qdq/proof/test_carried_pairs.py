"""Pairs are found past what a runtime moves them over."""

import pytest

from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.proof.carried_pairs import float_reader, quantizers_behind, restored_by
from tests.unit.plan.graphs import build


@pytest.mark.parametrize(("op", "carried"), [("Transpose<perm=[1,0]>(x)", True), ("Expand(x, k)", False)])
def test_onnx_runtime_carries_pairs_past_some_operators_only(op, carried):
    text = f"""(float[2,2] x) => (float[2,2] y) <float s = {{0.5}}, uint8 z = {{3}}, int64[2] k = {{2, 2}}> {{
        m = {op} q = QuantizeLinear(m, s, z) y = DequantizeLinear(q, s, z) }}"""
    value = build(text).graph.inputs[0]
    target = load_target("ort-cpu")
    assert any(quantizers_behind(value, target)) == carried
    assert (float_reader(value, target) == "") == carried


MOVED = """(float[N,4] x) => (float[4,N] y) <float s = {0.5}, uint8 z = {3}> {
    q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) y = Transpose<perm=[1,0]>(d) }"""


def test_a_value_is_restored_past_what_moves_it():
    found = {node.name: node for node in build(MOVED).graph}
    assert restored_by(found["y"].outputs[0], load_target("ort-cpu")) is found["d"]
    assert restored_by(found["q"].inputs[0], load_target("ort-cpu")) is None
