"""Each promise of a table, broken once in a graph that kept it."""

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from ptq_cli.plan.planner import LayerChoices, make_plan
from ptq_cli.plan.target.rules import Target
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.proof.target_faults import RULES, target_faults
from tests.each_case import each_case
from tests.unit.plan.graphs import build, quantized
from tests.unit.qdq.paired import conv

RESIDUAL = """(float[N,3,8,8] x) => (float[] y)
<float[3,3,3,3] w, float[3] b, float[3,3,1,1] v, float[3,3,1,1] u> {
  c = Conv<pads=[1,1,1,1]>(x, w, b)
  d = Conv(c, v)
  s = Add(d, c)
  r = Relu(s)
  y = Conv(r, u)
}"""


def result(graph: str, target: Target) -> ir.Model:
    model = build(graph)
    return quantized(model, make_plan(model, target))


def said(model: ir.Model, target: Target) -> list[str]:
    return [fault.text for fault in target_faults(model, target)]


def node(model: ir.Model, name: str) -> ir.Node:
    return next(item for item in model.graph if item.name == name)


def operators(model: ir.Model) -> set[str]:
    pairs = [item for item in model.graph if item.op_type == "QuantizeLinear"]
    return {pair.inputs[0].name for pair in pairs if pair.inputs[0].const_value is None}


def test_the_residual_is_quantized_and_the_convolution_before_the_sum_is_not():
    model = result(RESIDUAL, load_target("tensorrt"))
    assert operators(model) == {"x", "c", "r"}
    assert [value.producer().name for value in node(model, "s").inputs] == ["d", "c/DequantizeLinear"]
    assert said(model, load_target("tensorrt")) == []


def test_a_graph_of_an_older_opset_is_seen():
    target = load_target("generic")
    model = result(RESIDUAL, target)
    assert said(model, target) == []
    model.opset_imports[""] = 12
    assert {fault.rule for fault in target_faults(model, target)} == {"opset"}


def test_a_result_that_must_be_quantized_is_missed():
    target = load_target("generic")
    asked = replace(target, op={**target.op, "Conv": replace(target.op["Conv"], output="asked")})
    faults = said(result(RESIDUAL, asked), target)
    assert faults == ["the result of 'y' is not quantized, but the target requires it"]


def test_a_sum_that_a_user_keeps_in_float_does_not_go_into_the_convolution_before_it():
    target = load_target("tensorrt")
    model = build(RESIDUAL)
    plan = make_plan(model, target, LayerChoices(excluded={"s": "it is excluded"}))
    assert {layer.name: layer.reason for layer in plan.layers}["s"] == "it is excluded"
    # A quantized result would let TensorRT add integers all the same.
    assert "r" not in plan.activations
    assert said(quantized(model, plan), target) == []


TARGET = load_target("ort-cpu")
# Without the formats that an override may ask for.
TARGET = replace(TARGET, activation=replace(TARGET.activation, formats=[]))


def faults(model) -> list[tuple[str, str]]:
    return [(fault.rule, fault.text) for fault in target_faults(model, TARGET)]


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
