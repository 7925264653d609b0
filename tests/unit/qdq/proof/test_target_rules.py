"""Each promise of a table, broken once in a graph that kept it."""

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.rules import BiasRule, Target
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.proof.target_faults import target_faults
from tests.each_case import each_case
from tests.unit.plan.graphs import build, quantized

RESIDUAL = """(float[N,3,8,8] x) => (float[] y)
<float[3,3,3,3] w, float[3] b, float[3,3,1,1] v, float[3,3,1,1] u> {
  c = Conv<pads=[1,1,1,1]>(x, w, b)
  d = Conv(c, v)
  s = Add(d, c)
  r = Relu(s)
  y = Conv(r, u)
}"""
CONCAT = """(float[N,3,8,8] x) => (float[] y) <float[3,3,1,1] w, float[2,6,1,1] v> {
  c = Conv(x, w)
  j = Concat<axis=1>(c, x)
  y = Conv(j, v)
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


def test_without_that_rule_both_sides_are_quantized_and_the_fault_is_seen():
    target = load_target("tensorrt")
    plain = replace(target, op={**target.op, "Add": replace(target.op["Add"], fused_behind=[])})
    model = result(RESIDUAL, plain)
    assert operators(model) == {"x", "c", "d", "r"}
    assert said(model, plain) == []
    assert said(model, target) == ["the result of 'd' is quantized before Add 's', into which it is fused"]


def test_a_result_that_is_an_output_of_the_graph_goes_into_no_sum():
    target = load_target("tensorrt")
    model = result(RESIDUAL.replace("(float[] y)", "(float[] y, float[] d)"), target)
    assert operators(model) == {"x", "c", "d.float", "r"}
    assert said(model, target) == []


@pytest.mark.parametrize("name", ["tensorrt", "generic"])
def test_a_concat_has_one_scale_that_holds_all_its_sides(name):
    model = result(CONCAT, load_target(name))
    scales = {
        pair.inputs[0].name: float(pair.inputs[1].const_value.numpy())
        for pair in model.graph
        if pair.op_type == "QuantizeLinear" and pair.inputs[0].const_value is None
    }
    assert scales["x"] == scales["c"] == scales["j"]
    apart = result(CONCAT, load_target("ort-cpu"))
    assert len({pair.inputs[1].name for pair in apart.graph if pair.op_type == "QuantizeLinear"}) == 4


def test_scales_of_a_concat_that_differ_are_seen():
    target = load_target("tensorrt")
    loose = replace(target, op={**target.op, "Concat": replace(target.op["Concat"], ties=False)})
    (fault,) = said(result(CONCAT, loose), target)
    assert fault == "the edges of Concat 'j' have 2 scales, but must share one"


def changed(name: str, array: np.ndarray):
    def change(model: ir.Model) -> None:
        model.graph.initializers[name].const_value = ir.tensor(array, name=name)

    return change


def axis(model: ir.Model) -> None:
    node(model, "w/DequantizeLinear").attributes["axis"] = ir.AttrInt64("axis", 1)


@each_case(
    "change, fault",
    [
        (changed("x.zero_point", np.array(3, np.int8)), "zero points"),
        (changed("w.zero_point", np.ones(3, np.int8)), "zero points"),
        (changed("b.scale", np.ones(3, np.float32)), "biases"),
        (axis, "weights"),
        (lambda model: model.opset_imports.update({"": 12}), "opset"),
    ],
    ids=["zero_point", "weight_zero_point", "bias_scale", "axis", "opset"],
)
def test_a_promise_that_is_broken_is_seen(change, fault):
    target = load_target("generic")
    model = result(RESIDUAL, target)
    assert said(model, target) == []
    change(model)
    assert fault in {item.rule for item in target_faults(model, target)}


@pytest.mark.parametrize("promised", ["float", "pairs"])
def test_how_constants_are_stored_is_a_promise(promised):
    target = load_target("generic")
    model = result(RESIDUAL, target)
    other = replace(target, weight=replace(target.weight, stored="pairs"))
    if promised == "float":
        other = replace(target, bias=BiasRule("float"))
    assert {fault.rule for fault in target_faults(model, other)} == {"storage"}


def test_a_result_that_must_be_quantized_is_missed():
    target = load_target("generic")
    asked = replace(target, op={**target.op, "Conv": replace(target.op["Conv"], output="asked")})
    faults = said(result(RESIDUAL, asked), target)
    assert faults == ["the result of 'y' is not quantized, but the target requires it"]


def test_a_sum_that_a_user_keeps_in_float_does_not_go_into_the_convolution_before_it():
    target = load_target("tensorrt")
    model = build(RESIDUAL)
    plan = make_plan(model, target, excluded={"s": "it is excluded"})
    assert {layer.name: layer.reason for layer in plan.layers}["s"] == "it is excluded"
    # A quantized result would let TensorRT add integers all the same.
    assert "r" not in plan.activations
    assert said(quantized(model, plan), target) == []
