"""Questions of the planner about single tensors and nodes of a graph."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ptq_cli.models.graph_reading import input_at, rank_of, sole_reader
from ptq_cli.plan.operator_axes import may_end_signal, pads_groups_of_volumes
from ptq_cli.plan.sites import WeightSite
from ptq_cli.plan.target.rules import ONNXRUNTIME, OpRule, Target


def constant_size(value: ir.Value) -> int:
    """Return how many elements a constant has; 0 for a value that is computed or an input."""
    constant = value.const_value
    return int(constant.size) if constant is not None else 0


def parameter_size(value: ir.Value) -> int:
    """Return how many parameters a constant holds: its elements if they are floats; a shape has none."""
    constant = value.const_value
    return int(constant.size) if constant is not None and constant.dtype.is_floating_point() else 0


def weight_axis(node: ir.Node, rule: OpRule, value: ir.Value) -> int | None:
    """Return the axis of a weight's output channels, or None if it has none.

    A batch of matrices has no axis that is the output channel of all of them: it gets one scale. So does a
    grouped ConvTranspose, whose axis 1 counts the channels of only one group, for an integer kernel. Computed
    in float, it has scales along axis 0 where each group reads one channel, and else along axis 1.
    """
    if node.op_type == "MatMul" and rank_of(value) != 2:
        return None
    groups = node.attributes.get_int("group", 1) if node.op_type == "ConvTranspose" else 1
    if groups != 1:
        depthwise = value.shape is not None and value.shape[0] == groups
        return None if rule.integer_kernel else 0 if depthwise else rule.weight_axis
    if rule.transpose_attribute and node.attributes.get_int(rule.transpose_attribute, 0) == 1:
        return 1 - rule.weight_axis
    return rule.weight_axis


def is_constant(value: ir.Value) -> bool:
    """Tell whether a value is a constant."""
    return value.const_value is not None


def is_vector(value: ir.Value) -> bool:
    """Tell whether a value has one axis, not counting axes of size 1 before it."""
    return value.shape is not None and all(size == 1 for size in list(value.shape)[:-1])


def clip_bound(clip: ir.Node, index: int) -> float | None:
    """Return a constant bound of a Clip: the lower one is its input 1, the upper one 2; None without it."""
    value = input_at(clip, index)
    constant = value.const_value if value is not None else None
    return float(constant.numpy().item()) if constant is not None else None


def has_fixed_shape(value: ir.Value) -> bool:
    """Tell whether every size of a value is known before it is computed."""
    return value.shape is not None and all(isinstance(size, int) for size in value.shape)


def bias_add_behind(node: ir.Node, weight: WeightSite) -> tuple[ir.Node, int] | None:
    """Return the Add of a constant vector that alone reads a MatMul's output, and the vector's index."""
    add = sole_reader(node.outputs[0])
    if add is None or add.op_type != "Add" or weight.axis is None:
        return None
    matrix = node.inputs[weight.input_index]
    channels = matrix.shape[weight.axis] if matrix is not None and matrix.shape is not None else None
    for index in (0, 1):
        other = add.inputs[index]
        if other is None or not is_constant(other) or other.dtype != ir.DataType.FLOAT:
            continue
        # A bias with more axes than the product would add an axis to the result.
        if is_vector(other) and constant_size(other) == channels and fits_below(other, node.outputs[0]):
            return add, index
    return None


def fits_below(value: ir.Value, larger: ir.Value) -> bool:
    """Tell whether a value has no more axes than another."""
    axes, limit = rank_of(value), rank_of(larger)
    return axes is not None and (axes == 1 or (limit is not None and axes <= limit))


# ``x * sigmoid(x)``, which ONNX Runtime has an operator of its own for: its parts in a graph.


OWN_DOMAINS = ("", "ai.onnx")
COMPUTED = (
    "x * sigmoid(x) stays float: ONNX Runtime's own operator for it, QuickGelu, is faster than integers"
)
"""The reason that a user reads where the target may write ONNX Runtime's own operators."""


def silu_input(node: ir.Node | None) -> ir.Value | None:
    """Return the x of a SiLU that ends with a node, or None if the node ends none.

    It is a Swish, which opset 24 has; or the Mul of x and Sigmoid(x), whose Sigmoid nothing else reads.
    """
    if node is None or node.domain not in OWN_DOMAINS or node.outputs[0].dtype != ir.DataType.FLOAT:
        return None
    if node.op_type == "Swish":
        return node.inputs[0]
    gate = gate_of(node)
    return gate.inputs[0] if gate is not None else None


def gate_of(node: ir.Node) -> ir.Node | None:
    """Return the Sigmoid of a Mul of x and Sigmoid(x), or None if the node is another."""
    if node.op_type != "Mul" or node.domain not in OWN_DOMAINS:
        return None
    for value, x in ((node.inputs[0], node.inputs[1]), (node.inputs[1], node.inputs[0])):
        gate = value.producer() if value is not None else None
        if gate is None or gate.op_type != "Sigmoid" or gate.domain not in OWN_DOMAINS:
            continue
        if gate.inputs[0] is x and value is not None and sole_reader(value) is node:
            return gate
    return None


def is_part_of_silu(node: ir.Node) -> bool:
    """Tell whether a node is a SiLU, or the Sigmoid inside of one."""
    if node.op_type == "Sigmoid":
        product = sole_reader(node.outputs[0])
        return product is not None and gate_of(product) is node and silu_input(product) is not None
    return node.op_type in ("Mul", "Swish") and silu_input(node) is not None


# Why something cannot be quantized: each function returns the reason, or an empty string.


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
    if rule.not_together and all(node.attributes.get_int(name, 0) for name in rule.not_together):
        return f"the integer kernel is wrong with both {' and '.join(rule.not_together)}"
    if rule.volume_groups_unpadded and pads_groups_of_volumes(node):
        return "it pads volumes in groups, which the integer kernel computes wrongly"
    if rule.image_axis and may_end_signal(node):
        return "the runtime reduces signals rightly as images in float alone"
    return ""


def output_refusal(node: ir.Node, moved: int = 1) -> str:
    """Return why a node that moves values to its first outputs cannot move integers, or an empty string.

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


# How a target treats an operator together with its neighbors.


Reasons = Mapping[str, str]
"""Reasons by the name of a layer or a tensor."""


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
        if node is None or node.domain not in ("", "ai.onnx"):
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


def is_merged(node: ir.Node, rule: OpRule) -> bool:
    """Tell whether the target would merge a float node into the one that reads its output as floats."""
    follower = sole_reader(node.outputs[0])
    return (
        follower is not None
        and follower.op_type in rule.merged_by
        and input_at(node, rule.bias) is None
        and rank_of(node.outputs[0]) in (None, 2)
    )


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


def is_clamped(node: ir.Node, rules: Rules) -> bool:
    """Tell whether the only reader of a node's output is a Relu or Clip whose result is read.

    ONNX Runtime treats it as a part of the node, even if the node's output is an output of the graph, and
    finds no integer kernel for the two if their result is read as floats.
    """
    uses = list(node.outputs[0].uses())
    rule = rules.of(uses[0].node) if len(uses) == 1 else None
    return rule is not None and rule.kind == "clamp" and bool(uses[0].node.outputs[0].uses())


def input_fused_behind(join: ir.Node, rule: OpRule) -> ir.Value | None:
    """Return the input of a join that stays float because the join is merged into the operator that makes it.

    If there are several, the first: an operator takes one join, and a join goes into one operator.
    """
    for value in dict.fromkeys(join.inputs):
        producer = value.producer() if value is not None else None
        if (
            producer is not None
            and producer.op_type in rule.fused_behind
            and sole_reader(producer.outputs[0]) is join
        ):
            return value
    return None


def moved_inputs(node: ir.Node, rule: OpRule) -> list[ir.Value]:
    """Return the inputs of an operator that its quantized output depends on, according to its rule."""
    indices = rule.activations or ([0] if rule.kind == "same" else range(len(node.inputs)))
    values = (input_at(node, index) for index in indices)
    return [value for value in values if value is not None]


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
        current = (
            producer.inputs[0] if producer is not None and rule is not None and rule.kind == "same" else None
        )


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


# Angles that encode a position, and outer products: integers would harm the one and not speed up the other.
#
# Exported transformers compute rotary embeddings as a product of positions and frequencies, which Sin and
# Cos both read. A scale that covers position 2000 has steps of 8, so that the angle is wrong by a full
# turn.


SEARCH_DEPTH = 8
MOVERS = {"Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Transpose"}
MOVERS |= {"Cast", "Unsqueeze"}
SCALERS = {"Add", "Div", "Mul", "Sub"}
"""An angle times or plus a constant is an angle."""


def angle_refusal(node: ir.Node) -> str:
    """Return why an operator whose result is an angle stays float, or an empty string.

    A Sin alone is the activation function of some networks, and not a reason.
    """
    found: set[str] = set()
    level = [node.outputs[0]]
    for _ in range(SEARCH_DEPTH):
        readers = list(dict.fromkeys(reader for value in level for reader, _ in value.uses()))
        found.update(reader.op_type for reader in readers)
        level = [reader.outputs[0] for reader in readers if _keeps_angle(reader)]
    if not {"Sin", "Cos"} <= found:
        return ""
    return "its result is an angle that Sin and Cos read: an error of one step could be a full turn"


def outer_product_refusal(node: ir.Node) -> str:
    """Return why a MatMul of two computed tensors that sums nothing stays float, or an empty string."""
    first, second = (node.inputs[0], node.inputs[1]) if node.op_type == "MatMul" else (None, None)
    if first is None or second is None or is_constant(first) or is_constant(second):
        return ""
    sizes = [list(value.shape or ()) for value in (first, second)]
    if all(len(size) > 1 for size in sizes) and (sizes[0][-1] == 1 or sizes[1][-2] == 1):
        return "multiplies without summing: in integers it would lose accuracy and not be faster"
    return ""


def _keeps_angle(node: ir.Node) -> bool:
    if node.op_type in MOVERS:
        return True
    return node.op_type in SCALERS and any(is_constant(value) for value in node.inputs if value is not None)
