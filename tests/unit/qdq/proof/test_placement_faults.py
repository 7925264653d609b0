"""Each promise about number types, broken once in a graph that kept it."""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from ptq_cli.core.tensors import Array
from ptq_cli.models.pair_operators import DEQUANTIZE, dequantized_by
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.rules import Target
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.proof.target_faults import target_faults
from tests.each_case import each_case
from tests.unit.plan.graphs import build, quantized

TENSORRT = load_target("tensorrt")
GRAPH = """(float[N,16,8,8] x) => (float[] y) <float[32,16,3,3] w, float[16,32,1,1] v> {
  c = Conv(x, w) y = Conv(c, v) }"""


def in_floats(opset: int = 20) -> ir.Model:
    """Two Convs whose pairs were int8 and are E4M3: the parameters do not matter here."""
    target = Target(**{**vars(TENSORRT), "weight": TENSORRT.weight.__class__(stored="integers")})
    graph = build(GRAPH, opset=opset)
    model = quantized(graph, make_plan(graph, target))
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and tensor.dtype == ir.DataType.INT8:
            array = tensor.numpy().astype(ir.DataType.FLOAT8E4M3FN.numpy())
            value.const_value, value.type = ir.tensor(array), ir.TensorType(ir.DataType.FLOAT8E4M3FN)
    for node in model.graph:
        if node.op_type == "QuantizeLinear":
            node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT8E4M3FN)
        if node.op_type == DEQUANTIZE and len(node.inputs) < 3:
            raise AssertionError("each pair has a zero point, which says its type")
    return model


def broken(model: ir.Model) -> dict[str, str]:
    return {fault.rule: fault.text for fault in target_faults(model, TENSORRT)}


def weight_pair(model: ir.Model) -> ir.Node:
    pair = dequantized_by(model.graph.node("y").inputs[1])
    assert pair is not None
    return pair


def changed(change: Callable[[Array], Array], *indices: int) -> Callable[[ir.Model], None]:
    """Change the constants that the DequantizeLinear of a weight reads."""

    def edit(model: ir.Model) -> None:
        for index in indices:
            value = weight_pair(model).inputs[index]
            assert value is not None and value.const_value is not None
            value.const_value = ir.tensor(change(value.const_value.numpy()))
            value.type = ir.TensorType(value.const_value.dtype)

    return edit


def with_old_opset(model: ir.Model) -> None:
    model.opset_imports[""] = 18


def with_half_scale(model: ir.Model) -> None:
    with_old_opset(model)
    changed(lambda array: array.astype(np.float16), 1)(model)


def on_another_axis(model: ir.Model) -> None:
    weight_pair(model).attributes["axis"] = ir.AttrInt64("axis", 1)


def test_a_graph_of_e4m3_is_correct() -> None:
    assert broken(in_floats()) == {}


@each_case(
    "change, rule, says",
    [
        (
            changed(lambda array: array.astype(np.int8), 0, 2),
            "types",
            "reads float8e4m3fn and int8, and no kernel has two types",
        ),
        (changed(lambda array: array[:8], 0), "types", "16 channels or more, and its weight is 8x32x1x1"),
        (changed(lambda array: array * 0 + array.dtype.type(1), 2), "zero points", "zero point is not 0"),
        (with_old_opset, "opset", "reads float8e4m3fn, which needs opset 19"),
        (with_half_scale, "opset", "which needs opset 19"),
        (on_another_axis, "weights", "scales are along axis 1"),
    ],
    ids=["int8", "few channels", "zero point", "old opset", "half scale", "axis"],
)
def test_what_breaks_a_rule_is_named(change: Callable[[ir.Model], None], rule: str, says: str) -> None:
    model = in_floats()
    change(model)
    assert says in broken(model)[rule]


def test_another_target_does_not_have_the_type() -> None:
    faults = {fault.rule for fault in target_faults(in_floats(), load_target("generic"))}
    assert "formats" in faults
