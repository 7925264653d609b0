"""Each promise of a table, broken once in a graph that kept it."""

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.rules import Target
from ptq_cli.plan.target import load_target
from ptq_cli.qdq.target_rules import target_faults
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


def node(model: ir.Model, name: str) -> ir.Node:
    return next(item for item in model.graph if item.name == name)


def operators(model: ir.Model) -> set[str]:
    pairs = [item for item in model.graph if item.op_type == "QuantizeLinear"]
    return {pair.inputs[0].name for pair in pairs if pair.inputs[0].const_value is None}


def test_the_residual_is_quantized_and_the_convolution_before_the_sum_is_not():
    model = result(RESIDUAL, load_target("tensorrt"))
    assert operators(model) == {"x", "c", "r"}
    assert [value.producer().name for value in node(model, "s").inputs] == ["d", "c/DequantizeLinear"]
    assert list(target_faults(model, load_target("tensorrt"))) == []


def test_without_that_rule_both_sides_are_quantized_and_the_fault_is_seen():
    target = load_target("tensorrt")
    plain = replace(target, op={**target.op, "Add": replace(target.op["Add"], fused_behind=[])})
    model = result(RESIDUAL, plain)
    assert operators(model) == {"x", "c", "d", "r"}
    assert list(target_faults(model, plain)) == []
    assert list(target_faults(model, target)) == [
        "the output of 'd' is quantized before the Add that it is merged with"
    ]


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
    (fault,) = target_faults(result(CONCAT, loose), target)
    assert fault == "the edges of Concat 'j' have 2 scales, and must share one"


def changed(name: str, array: np.ndarray):
    def change(model: ir.Model) -> None:
        model.graph.initializers[name].const_value = ir.tensor(array, name=name)

    return change


def bare(model: ir.Model) -> None:
    reader = node(model, "c")
    reader.replace_input_with(2, model.graph.initializers["b.quantized"])


def axis(model: ir.Model) -> None:
    node(model, "w/DequantizeLinear").attributes["axis"] = ir.AttrInt64("axis", 1)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (changed("x.zero_point", np.array(3, np.int8)), "'x' has zero point 3, target 'generic' promises 0"),
        (changed("w.zero_point", np.ones(3, np.int8)), "the weight of 'c' has a zero point that is not 0"),
        (changed("b.scale", np.ones(3, np.float32)), "the bias of 'c' has another scale than its products"),
        (bare, "the bias of 'c' is float, target 'generic' promises int32"),
        (axis, "the weight of 'c' has its scales along axis 1, and not 0"),
        (lambda model: model.opset_imports.update({"": 12}), "the opset is 12, target 'generic' needs 13"),
    ],
    ids=["zero_point", "weight_zero_point", "bias_scale", "bias", "axis", "opset"],
)
def test_a_promise_that_is_broken_is_seen(change, fault):
    target = load_target("generic")
    model = result(RESIDUAL, target)
    assert list(target_faults(model, target)) == []
    change(model)
    assert fault in list(target_faults(model, target))


def test_an_output_that_must_be_quantized_is_missed():
    target = load_target("generic")
    asked = replace(target, op={**target.op, "Conv": replace(target.op["Conv"], output="asked")})
    faults = list(target_faults(result(RESIDUAL, asked), target))
    assert faults == ["the output of 'y' is not quantized, target 'generic' wants it so"]
