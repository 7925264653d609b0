"""Rules of a target for operators with those around them, and reasons why a value or operator stays float."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ptq_cli.models.graph_reading import constant_shape, every_node, input_at, rank_of, sole_reader
from ptq_cli.models.pair_operators import CLAMPS
from ptq_cli.plan.graph_questions import (
    OWN_DOMAINS,
    constant_size,
    fits_below,
    has_fixed_shape,
    is_constant,
    is_part_of_silu,
    is_vector,
    may_end_signal,
    pads_groups_of_volumes,
)
from ptq_cli.plan.sites import WeightSite
from ptq_cli.plan.target.rules import ONNXRUNTIME, OpRule, Target

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


Reasons = Mapping[str, str]  # Reasons by the name of a layer or a tensor


@dataclass(frozen=True)
class Rules:
    """A target's rules for the nodes of a graph, of which the user keeps some in float, with the reason."""

    target: Target
    excluded: Reasons = field(default_factory=dict)

    def of(self, node: ir.Node | None) -> OpRule | None:
        """Return the rule for a node, or None if there is none; other domains have no rules.

        A layer that is kept in float must stay between float tensors if the runtime would compute it in
        integers between quantized ones; see also ``WeightRule.quantizes_floats``. A Relu or Clip is treated
        like the operator before it. What becomes an operator of the runtime's own has no rule: it is computed
        in float.
        """
        if node is None or node.domain not in OWN_DOMAINS:
            return None
        if self.target.runtime_operators and is_part_of_silu(node):
            return None
        rule = self.target.op.get(node.op_type)
        reason = self.excluded.get(node.name or "")
        if not reason or rule is None or rule.kind in ("apart", "clamp"):
            return rule
        weight = input_at(node, rule.weight)
        is_weighted = rule.kind == "compute" and weight is not None and is_constant(weight)
        return None if is_weighted or rule.kind == "stored" else OpRule(kind="apart", note=reason)

    def ruled(self, graph: ir.Graph, *kinds: str) -> Iterator[tuple[ir.Node, OpRule]]:
        """Yield the nodes, nested ones too, that have a rule, of one of these kinds if some are given."""
        for node in every_node(graph):
            rule = self.of(node)
            if rule is not None and (not kinds or rule.kind in kinds):
                yield node, rule


def rule_of(node: ir.Node | None, target: Target) -> OpRule | None:
    """Return the target's rule for a node, or None if it has none."""
    return Rules(target).of(node)


def clamp_behind(node: ir.Node, rules: Rules) -> ir.Node | None:
    """Return the Relu or Clip that is the only reader of a node's output, if it disappears into the node."""
    follower = sole_reader(node.outputs[0])
    rule = rules.of(follower)
    if follower is None or rule is None or rule.kind != "clamp" or clamp_refusal(follower):
        return None
    return follower


def is_clamped(node: ir.Node, rules: Rules) -> bool:
    """Tell whether the only reader of a node's output is a Relu or Clip whose result is read.

    ONNX Runtime treats it as a part of the node, even if the node's output is an output of the graph, and
    finds no integer kernel for the two if their result is read as floats.
    """
    uses = list(node.outputs[0].uses())
    rule = rules.of(uses[0].node) if len(uses) == 1 else None
    return rule is not None and rule.kind == "clamp" and bool(uses[0].node.outputs[0].uses())


def is_merged(node: ir.Node, rule: OpRule) -> bool:
    """Tell whether the target would merge a float node into the one that reads its output as floats."""
    follower = sole_reader(node.outputs[0])
    if follower is None or follower.op_type not in rule.merged_by or input_at(node, rule.bias) is not None:
        return False
    return rank_of(node.outputs[0]) in (None, 2)


def bias_add_behind(node: ir.Node, weight: WeightSite) -> tuple[ir.Node, int] | None:
    """Return the Add of a constant vector that alone reads a MatMul's output, and the vector's index."""
    add = sole_reader(node.outputs[0])
    if add is None or add.op_type != "Add" or weight.axis is None:
        return None
    matrix = node.inputs[weight.input_index]
    channels = matrix.shape[weight.axis] if matrix is not None and matrix.shape is not None else None
    for index, other in enumerate(add.inputs):
        if other is None or not is_constant(other) or other.dtype != ir.DataType.FLOAT:
            continue
        # A bias with more axes than the product would add an axis to the result.
        if is_vector(other) and constant_size(other) == channels and fits_below(other, node.outputs[0]):
            return add, index
    return None


def merges_bias_add(node: ir.Node, rule: OpRule, target: Target) -> bool:
    """Tell whether a target computes a MatMul and the Add of its bias in one kernel, in integers.

    ONNX Runtime does if it can reshape the input to a matrix beforehand. Of other runtimes the table says so
    with ``output = "always"``; one that keeps biases in float adds them to a float result otherwise.
    """
    if rule.output == "always" and target.runtime != ONNXRUNTIME:
        return True
    source = node.inputs[0]
    is_matrix = source is not None and (rank_of(source) == 2 or has_fixed_shape(source))
    return is_matrix and target.bias.format != "float"


def input_fused_behind(join: ir.Node, rule: OpRule) -> ir.Value | None:
    """Return the input of a join that stays float because the join is merged into the operator that makes it.

    If there are several, the first: an operator takes one join, and a join goes into one operator.
    """
    for value in dict.fromkeys(join.inputs):
        producer = value.producer() if value is not None else None
        is_fused = producer is not None and producer.op_type in rule.fused_behind
        if producer is not None and is_fused and sole_reader(producer.outputs[0]) is join:
            return value
    return None


def moved_inputs(node: ir.Node, rule: OpRule) -> list[ir.Value]:
    """Return the inputs of an operator that its quantized output depends on, according to its rule."""
    indices = rule.activations or ([0] if rule.kind == "same" else range(len(node.inputs)))
    return [value for index in indices if (value := input_at(node, index)) is not None]


def moved_outputs(node: ir.Node, rule: OpRule) -> list[ir.Value]:
    """Return the outputs that hold an operator's moved values: the first, or all of a Split's."""
    outputs = [value for value in node.outputs if value.name]
    return outputs if rule.outputs == "all" else outputs[:1]


def moved_to(value: ir.Value, target: Target) -> Iterator[ir.Value]:
    """Yield a value and the values it was moved from.

    ONNX Runtime moves a DequantizeLinear down along with them, even past operators kept in float by a user.
    """
    current: ir.Value | None = value
    while current is not None:
        yield current
        producer = current.producer()
        rule = rule_of(producer, target)
        is_moved = producer is not None and rule is not None and rule.kind == "same"
        current = producer.inputs[0] if producer is not None and is_moved else None


def moved_from(value: ir.Value, target: Target) -> Iterator[ir.Value]:
    """Yield a value, the values that it is moved to, and those that a Relu or Clip makes from it.

    ONNX Runtime moves a QuantizeLinear up along with them, even past operators kept in float by a user.
    """
    waiting = [value]
    while waiting:
        current = waiting.pop()
        yield current
        for node, index in current.uses():
            rule = rule_of(node, target)
            if index == 0 and rule is not None and rule.kind in ("same", "clamp"):
                waiting.extend(moved_outputs(node, rule))
