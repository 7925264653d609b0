"""Groups of tensors that share parameters, and whose statistics decide them.

Requests that reach what others read: branches of an If, and sums with vectors.
"""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.requests import Ties
from ptq_cli.plan.target.target_file import load_target
from tests.unit.plan.graphs import build, quantized, run, sample, sqnr_db


def test_what_is_moved_takes_the_parameters_of_where_it_was_moved_from():
    ties = Ties()
    ties.move("c", "b")
    ties.move("b", "a")
    groups = ties.groups(["a", "b", "c", "d"])
    assert groups.sources == {"a": "a", "b": "a", "c": "a", "d": "d"}
    assert groups.unions == {}


def test_ties_join_groups_also_through_what_is_moved():
    ties = Ties()
    ties.move("moved", "a")
    ties.tie(["moved", "b", "out"])
    ties.tie(["out2", "c", "b"])
    groups = ties.groups(["a", "b", "c", "moved", "out", "out2", "alone"])
    assert {groups.sources[name] for name in ("a", "b", "c", "moved", "out", "out2")} == {"a"}
    assert groups.unions == {"a": ("a", "b", "c", "out", "out2")}
    assert groups.sources["alone"] == "alone"


def test_a_chain_of_thousands_is_no_recursion():
    ties = Ties()
    names = [f"t{index}" for index in range(20_000)]
    for before, after in itertools.pairwise(names):
        ties.tie([after, before])
    assert set(ties.groups(names).sources.values()) == {"t0"}


TEXT = """(float[N,3,8] x, bool c) => (float[N,4,8] u, float[] z) <float[8,3,3] w, float[4,8,1] v> {{
    y = Conv<pads=[1,1]>(x, w)
    u = Conv(y, v)
    {move}
    z = If (c) <
        then_branch = g1 () => (float[] a) {{ a = Add(t, t) }},
        else_branch = g2 () => (float[] b) {{ b = Neg(t) }}
    > }}"""


MOVES = {
    "transpose": "t = Transpose<perm=[0,2,1]>(y)",
    "transpose_reshape": "s = Constant<value = int64[2] {-1, 8}>()\n"
    " r = Transpose<perm=[0,2,1]>(y)\n t = Reshape(r, s)",
}


@pytest.mark.parametrize("case", MOVES)
def test_onnxruntime_loads_what_a_branch_reads_of_moved_integers(case):
    model = build(TEXT.format(move=MOVES[case]), opset=17)
    plan = make_plan(model, load_target("ort-cpu"))
    assert plan.activations["t"].source == "y"  # Otherwise ONNX Runtime would end this process.
    integers = quantized(model, plan)
    inputs = sample(model, seed=3)
    for choice in (True, False):
        batch = {**inputs, "c": np.array(choice)}
        wanted = run(model, batch, optimize=False)
        for found, one in zip(run(integers, batch), wanted, strict=True):
            assert sqnr_db(one, found) > 25


@pytest.mark.parametrize(("rest", "asked"), [("y = Mul(q, p)", False), ("y = Relu(q)", True)])
def test_behind_a_vector_on_what_others_read_openvino_gets_no_quantization(rest, asked):
    graph = f"""(float[N,4,8] x) => (float[] y) <float[8] b, float[8,8] w> {{
        p = Sigmoid(x) a = Add(p, b) q = MatMul(a, w) {rest} }}"""
    target = load_target("openvino")
    found = make_plan(build(graph), target, may_be_empty=True).activations
    assert ("a" in found) == asked
    assert "a" in make_plan(build(graph), replace(target, shifts_wrongly=False)).activations
