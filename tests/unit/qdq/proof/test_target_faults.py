"""A graph that a target does not allow is told from one that it does, by the rule's name."""

from dataclasses import replace

import numpy as np

from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.proof.target_faults import RULES, target_faults
from tests.each_case import each_case
from tests.unit.plan.graphs import build
from tests.unit.qdq.paired import conv

TARGET = load_target("ort-cpu")
TARGET = replace(TARGET, activation=replace(TARGET.activation, formats=[]))
"""Without the formats that an override may ask for."""


def faults(model) -> list[tuple[str, str]]:
    return [(fault.rule, fault.text) for fault in target_faults(model, TARGET)]


def test_a_model_by_hand_may_be_right():
    assert faults(conv()) == []


@each_case(
    "changes, rule, text",
    [
        (
            [("dr = DequantizeLinear(qr, s, zero)", "dr = DequantizeLinear(qr, k, zero)")],
            "pairs",
            "'dr' does not have the parameters",
        ),
        ([(", zero)", ", i)")], "formats", "'qr' is int8, but the target expects uint8"),
        (
            [("(w, k, i)", "(w, k, j)"), ("int8 i = {0},", "int8 i = {0}, int8 j = {3},")],
            "zero points",
            "'dw': the weight's zero point is not 0",
        ),
        (
            [("float k = {0.01}", "float k = {0.03}")],
            "biases",
            "'db': the bias of 'c' does not have the scale of its input times that of its weight",
        ),
        (
            [("Conv(dx", "Conv(x")],
            "biases",
            "'db': the bias of 'c' is stored as integers, but its input is not",
        ),
    ],
)
def test_a_fault_has_the_name_of_its_rule(changes, rule, text):
    found = faults(conv(*changes))
    assert rule in {item.name for item in RULES}
    assert any(name == rule and said.startswith(text) for name, said in found), found


def test_scales_along_another_axis_than_the_output_channels():
    changes = [
        ("DequantizeLinear(w, k, i)", "DequantizeLinear<axis=1>(w, ks, is)"),
        ("float k = {0.01},", "float[3] ks, int8[3] is = {0, 0, 0},"),
        ("c = Conv(dx, dw, db)", "c = Conv(dx, dw)"),
        ("    db = DequantizeLinear(b, p)\n", ""),
    ]
    found = faults(conv(*changes))
    assert ("weights", "'dw': scales are along axis 1, but Conv expects axis 0") in found


def test_integers_of_a_model_that_takes_and_gives_them_are_no_fault():
    text = """(uint8[2,4] x) => (uint8[2,4] y) <float s = {0.02}, uint8 z = {128}> {
        d = DequantizeLinear(x, s, z) r = Sin(d) y = QuantizeLinear(r, s, z) }"""
    assert faults(build(text, constants={"w": np.zeros(1)})) == []


LINEAR = """(float[N,4] x) => (float[N,4] y) <float s = {0.5}, uint8 z = {3}> {
    q = QuantizeLinear(x, s, z)
    t = Reshape(q, k)
    a = com.microsoft.QLinearAdd(t, s, z, t, s, z, s, z)
    y = DequantizeLinear(a, s, z) }"""


def test_a_graph_of_integer_operators_is_right_where_a_runtime_has_them():
    model = build(
        LINEAR.replace("uint8 z = {3}", "uint8 z = {3}, int64[2] k"), constants={"k": np.array([-1, 4])}
    )
    assert list(target_faults(model, load_target("ort-cpu"))) == []
    found = [(fault.rule, fault.text) for fault in target_faults(model, load_target("generic"))]
    assert ("pairs", "'q' is read by Reshape 't', which is not a DequantizeLinear") in found
    assert ("pairs", "'y' reads neither a QuantizeLinear nor a constant") in found
    # Of a type that the target has not, its own zero point is what it wants.
    assert ("zero points", "'q': the zero point is 3, but the target expects 0") in found
