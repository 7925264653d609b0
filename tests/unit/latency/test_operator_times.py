"""A kernel's time is that of the node that it is named for, whichever nodes were merged into it."""

import numpy as np

from ptq_cli.latency.operator_times import node_times
from tests.unit.plan.graphs import build, sample

MERGED = """(float[N,3,32,32] x) => (float[N,8,32,32] y)
    <float[8,3,3,3] w, float[8] a, float[8] b, float[8] c, float[8] d, float[8,3,1,1] u> {
    h = Conv<pads=[1,1,1,1]>(x, w) n = BatchNormalization(h, a, b, c, d) r = Relu(n)
    s = Conv(x, u) t = Add(r, s) y = HardSwish(t) }"""


def test_a_convolution_has_the_time_of_what_was_merged_into_it():
    model = build(MERGED)
    found = node_times(model, [sample(model, batch=1)], threads=1, seconds=0.0)
    assert [node.operator for node in found] == [node.op_type for node in model.graph]
    times = {node.name: node.microseconds for node in found}
    assert times["h"] > 0 and times["s"] > 0
    assert times["n"] == times["r"] == 0


def test_names_need_not_be_unique():
    model = build("(float[N,64] x) => (float[N,64] y) { a = Exp(x) b = Neg(a) c = Sqrt(b) y = Exp(c) }")
    for node in model.graph:
        node.name = ""
    batch = {"x": np.ones((64, 64), np.float32)}
    found = node_times(model, [batch], threads=1, seconds=0.0)
    assert [node.operator for node in found] == ["Exp", "Neg", "Sqrt", "Exp"]
    assert all(node.microseconds > 0 for node in found)
