"""Why something cannot be quantized: each function returns the reason, or an empty string."""

import numpy as np
import onnx_ir as ir

from ptq_cli.models.graph.graph_reading import input_at
from ptq_cli.plan.questions.graph_questions import is_constant, is_vector
from ptq_cli.plan.questions.sigmoid_gates import COMPUTED, is_part_of_silu
from ptq_cli.plan.target.rules import OpRule, Target

FUSED = ": if ONNX Runtime's optimizer created it, quantize the model from before the optimization"


def integers_refusal(node: ir.Node) -> str:
    """Return why a node that does not compute floats (a shape, say) is left alone, or an empty string."""
    dtypes = {value.dtype for value in node.outputs if value.dtype is not None}
    if not dtypes or any(dtype.is_floating_point() for dtype in dtypes):
        return ""
    return f"computes {' and '.join(sorted(dtype.name.lower() for dtype in dtypes))}, not floats"


def table_refusal(node: ir.Node) -> str:
    """Return why a table that a Gather looks rows up in is left alone, or an empty string."""
    table = input_at(node, 0)
    if node.op_type != "Gather" or table is None or not is_constant(table):
        return ""
    return f"looks up rows of the table '{table.name}': integers would make the file smaller, but not faster"


def no_rule(node: ir.Node, target: Target) -> str:
    """Return why an operator that a target has no rule for stays float."""
    if node.domain not in ("", "ai.onnx"):
        fused = FUSED if node.domain.startswith("com.microsoft") else ""
        return f"target {target.name} has no rule for {node.op_type} of domain {node.domain}{fused}"
    if target.runtime_operators and is_part_of_silu(node):
        return COMPUTED
    if why := target.floats.get(node.op_type):
        return f"target {target.name} has no integer {node.op_type}: {why}"
    return f"target {target.name} has no rule for {node.op_type}"


def float_refusal(value: ir.Value) -> str:
    """Return why an activation cannot be quantized, or an empty string."""
    if is_constant(value):
        return f"reads the constant '{value.name}': quantizing it would lose accuracy and gain nothing"
    if value.dtype != ir.DataType.FLOAT:
        return f"'{value.name}' is {_dtype_name(value)}, not float"
    return ""


def attribute_refusal(node: ir.Node, rule: OpRule) -> str:
    """Return why a node's attributes rule out its integer kernel, or an empty string."""
    for name in rule.unit_attributes:
        attribute = node.attributes.get(name)
        if attribute is not None and np.any(np.asarray(attribute.value) != 1):
            return f"{name} is {_attribute_text(attribute)}, the integer kernel needs 1"
    for name, wanted in rule.equal_attributes.items():
        found = node.attributes.get_string(name, wanted)
        if found != wanted:
            return f"{name} is {found}, the integer kernel needs {wanted}"
    return ""


def output_refusal(node: ir.Node, moved: int = 1) -> str:
    """Return why a node that moves values to its first outputs cannot move integers, or an empty string.

    Edge case:
        ONNX Runtime drops the pair around a MaxPool only if nothing reads the indices of its maxima.
    """
    read = [bool(value.uses()) or value.is_graph_output() for value in node.outputs]
    if any(read[moved:]):
        return f"its second output '{node.outputs[read.index(True, moved)].name}' is used too"
    if not all(read[:moved]):
        return f"its output '{node.outputs[read.index(False)].name}' is not used, so it cannot be quantized"
    return ""


def clamp_refusal(node: ir.Node) -> str:
    """Return why a Relu or Clip does not disappear into a quantized range, or an empty string.

    A quantized range always includes 0, so that a Clip to only positive numbers is never redundant.
    """
    for index, beyond in ((1, np.greater), (2, np.less)):
        bound = input_at(node, index)
        if bound is None:
            continue
        if bound.const_value is None:
            return f"its bound '{bound.name}' is computed at run time"
        if np.any(beyond(bound.const_value.numpy(), 0)):
            return f"its bound '{bound.name}' excludes 0, which every quantized range includes"
    return ""


def weight_refusal(value: ir.Value, *, may_be_computed: bool) -> str:
    """Return why a weight cannot be stored as integers, or an empty string."""
    if not is_constant(value):
        return "" if may_be_computed else f"its weight '{value.name}' is computed at run time"
    if value.dtype != ir.DataType.FLOAT:
        return f"its weight '{value.name}' is {_dtype_name(value)}, not float"
    if value.const_value is not None and value.const_value.size == 0:
        return f"its weight '{value.name}' has no values"
    return ""


def bias_refusal(value: ir.Value) -> str:
    """Return why a bias cannot be stored as int32, or an empty string."""
    if not is_constant(value):
        return f"its bias '{value.name}' is computed at run time"
    if not is_vector(value):
        return f"its bias '{value.name}' is not a vector over the output channels"
    return ""


def _dtype_name(value: ir.Value) -> str:
    return value.dtype.name.lower() if value.dtype is not None else "of unknown type"


def _attribute_text(attribute: ir.Attr) -> str:
    value = attribute.value
    return f"{value:g}" if isinstance(value, int | float) else str(list(value))
