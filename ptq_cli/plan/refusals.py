"""Reasons why a value or an operator stays in float: each function gives one, or an empty text."""

import numpy as np
import onnx_ir as ir

from ptq_cli.models.graph_reading import constant_shape, input_at, rank_of
from ptq_cli.models.pair_operators import CLAMPS
from ptq_cli.plan.graph_questions import (
    OWN_DOMAINS,
    is_constant,
    is_part_of_silu,
    is_vector,
    may_end_signal,
    pads_groups_of_volumes,
)
from ptq_cli.plan.target.rules import OpRule, Target

QUICKER_SILU = (
    "x * sigmoid(x) stays float: ONNX Runtime's own operator for it, QuickGelu, is faster than integers"
)
FUSED = ": if ONNX Runtime's optimizer created it, quantize the model from before the optimization"
_SEARCH_DEPTH = 8  # operators from one whose result may be an angle to a Sin or Cos
_MOVERS = {"Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Transpose"}
_MOVERS |= {"Cast", "Unsqueeze"}
_SCALERS = {"Add", "Div", "Mul", "Sub"}  # an angle times or plus a constant is an angle


def integers_refusal(node: ir.Node) -> str:
    """Give the reason of a node that does not compute floats, but a shape, say."""
    dtypes = {value.dtype for value in node.outputs if value.dtype is not None}
    if not dtypes or any(dtype.is_floating_point() for dtype in dtypes):
        return ""
    return f"computes {' and '.join(sorted(dtype.name.lower() for dtype in dtypes))}, not floats"


def table_refusal(node: ir.Node) -> str:
    """Give the reason of a Gather that looks rows up in a table."""
    table = input_at(node, 0)
    if node.op_type != "Gather" or table is None or not is_constant(table):
        return ""
    return f"looks up rows of the table '{table.name}': integers would make the file smaller, but not faster"


def no_rule(node: ir.Node, target: Target) -> str:
    """Give the reason of an operator that a target has no rule for."""
    if node.domain not in OWN_DOMAINS:
        fused = FUSED if node.domain.startswith("com.microsoft") else ""
        return f"target {target.name} has no rule for {node.op_type} of domain {node.domain}{fused}"
    if target.runtime_operators and is_part_of_silu(node):
        return QUICKER_SILU
    if why := target.floats.get(node.op_type):
        return f"target {target.name} has no integer {node.op_type}: {why}"
    return f"target {target.name} has no rule for {node.op_type}"


def float_refusal(value: ir.Value) -> str:
    """Give the reason of an activation that is a constant, or of another type than float32."""
    if is_constant(value):
        return f"reads the constant '{value.name}': quantizing it would lose accuracy and gain nothing"
    return _type_refusal(value, "")


def _type_refusal(value: ir.Value, what: str) -> str:
    if value.dtype == ir.DataType.FLOAT:
        return ""
    dtype = value.dtype.name.lower() if value.dtype is not None else "of unknown type"
    return f"{what}'{value.name}' is {dtype}, not float"


def attribute_refusal(node: ir.Node, rule: OpRule) -> str:
    """Give the reason of a node whose attributes rule out its integer kernel."""
    for name in rule.unit_attributes:
        attribute = node.attributes.get(name)
        if attribute is not None and np.any(np.asarray(attribute.value) != 1):
            value = attribute.value
            text = f"{value:g}" if isinstance(value, int | float) else str(list(value))
            return f"{name} is {text}, the integer kernel needs 1"
    for name, wanted in rule.equal_attributes.items():
        found = node.attributes.get_string(name, wanted)
        if found != wanted:
            return f"{name} is {found}, the integer kernel needs {wanted}"
    if rule.not_together and all(node.attributes.get_int(name, 0) for name in rule.not_together):
        return f"the integer kernel is wrong with both {' and '.join(rule.not_together)}"
    if rule.volume_groups_unpadded and pads_groups_of_volumes(node):
        return "it pads volumes in groups, which the integer kernel computes wrongly"
    if rule.image_axis and may_end_signal(node):
        return "the runtime reduces signals rightly as images in float alone"
    return ""


def reader_refusal(node: ir.Node, rule: OpRule) -> str:
    """Name the reader that rules out an operator's integer kernel (``not_read_by``)."""
    rank, axis = rank_of(node.outputs[0]), node.attributes.get_int("axis", -1)
    joins_inner_axis = node.op_type == "Concat" and (rank is None or axis % rank != rank - 1)
    has_several_matrices = node.op_type == "MatMul" and len(constant_shape(input_at(node, 1))) > 2
    if not rule.not_read_by or not (joins_inner_axis or has_several_matrices):
        return ""
    readers = [use.node for use in node.outputs[0].uses()]
    behind = [use.node for reader in readers if reader.op_type in CLAMPS for use in reader.outputs[0].uses()]
    for reader in (*readers, *behind):
        if reader.op_type in rule.not_read_by:
            return f"{reader.op_type} '{reader.name}' reads it, which the runtime cannot load in integers"
    return ""


def output_refusal(node: ir.Node, moved: int = 1) -> str:
    """Give the reason of a node that moves values to its first outputs, and cannot move integers.

    ONNX Runtime drops the pair around a MaxPool only if nothing reads the indices of its maxima.
    """
    read = [bool(value.uses()) or value.is_graph_output() for value in node.outputs]
    if any(read[moved:]):
        return f"its second output '{node.outputs[read.index(True, moved)].name}' is used too"
    if not all(read[:moved]):
        return f"its output '{node.outputs[read.index(False)].name}' is not used, so it cannot be quantized"
    return ""


def clamp_refusal(node: ir.Node) -> str:
    """Give the reason of a Relu or Clip that does not disappear into a quantized range.

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
    """Give the reason of a weight that cannot be stored as integers."""
    if not is_constant(value):
        return "" if may_be_computed else f"its weight '{value.name}' is computed at run time"
    if reason := _type_refusal(value, "its weight "):
        return reason
    is_empty = value.const_value is not None and value.const_value.size == 0
    return f"its weight '{value.name}' has no values" if is_empty else ""


def bias_refusal(value: ir.Value) -> str:
    """Give the reason of a bias that cannot be stored as int32."""
    if not is_constant(value):
        return f"its bias '{value.name}' is computed at run time"
    return "" if is_vector(value) else f"its bias '{value.name}' is not a vector over the output channels"


def angle_refusal(node: ir.Node) -> str:
    """Give the reason of an operator whose result is an angle.

    Exported transformers compute rotary embeddings as a product of positions and frequencies, which Sin and
    Cos both read. A scale that covers position 2000 has steps of 8, so that the angle is wrong by a full
    turn. A Sin alone is the activation function of some networks, and not a reason.
    """
    found: set[str] = set()
    level = [node.outputs[0]]
    for _ in range(_SEARCH_DEPTH):
        readers = list(dict.fromkeys(reader for value in level for reader, _ in value.uses()))
        found.update(reader.op_type for reader in readers)
        level = [reader.outputs[0] for reader in readers if _keeps_angle(reader)]
    if not {"Sin", "Cos"} <= found:
        return ""
    return "its result is an angle that Sin and Cos read: an error of one step could be a full turn"


def _keeps_angle(node: ir.Node) -> bool:
    if node.op_type in _MOVERS:
        return True
    return node.op_type in _SCALERS and any(is_constant(value) for value in node.inputs if value is not None)


def outer_product_refusal(node: ir.Node) -> str:
    """Give the reason of a MatMul of two computed tensors that sums nothing."""
    first, second = (node.inputs[0], node.inputs[1]) if node.op_type == "MatMul" else (None, None)
    if first is None or second is None or is_constant(first) or is_constant(second):
        return ""
    sizes = [list(value.shape or ()) for value in (first, second)]
    if all(len(size) > 1 for size in sizes) and (sizes[0][-1] == 1 or sizes[1][-2] == 1):
        return "multiplies without summing: in integers it would lose accuracy and not be faster"
    return ""
