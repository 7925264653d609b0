"""Constant folding by onnxscript, rules that drop operators without effect, and Identity operators.

A branch of an If may only hand on a value from outside, or a constant. Passes that remove what computes
nothing leave such an output without a node that gives it, and the checker refuses the model. Of two
outputs that are one value ONNX Runtime gives the second no value. The pass of onnx_ir that removes
identities ends where a branch hands on a value from outside that is an output there as well.

Its default rules, but for some. BatchNormalization is folded by our own pass (``passes.merged`` says why),
and what adds 0 or multiplies by 1 goes by our own rules. A rule that makes a Split of two Slices writes an
attribute of opset 18 into any model, and looks through the whole graph at each node: with it 5,000 nodes took
minutes, without it seconds.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
from onnx_ir.passes import common as passes

from ptq_cli.models.files.mapped_constants import LAZY
from ptq_cli.models.files.storing import is_large
from ptq_cli.models.graph_reading import FreshNames, every_graph, every_node
from ptq_cli.models.opset import inline_functions
from ptq_cli.models.preparing.fold_known import fold_known, fold_lazily
from ptq_cli.models.preparing.rewriting import made_by
from ptq_cli.models.shapes import all_known

if TYPE_CHECKING:
    from onnxscript.rewriter import RewriteRule


def own_nested_outputs(model: ir.Model) -> int:
    """Put an Identity before outputs that a nested graph does not compute, or has twice; return how many.

    Ensures: each output of a nested graph is computed by a node of its own there. Names outside stay.
    """
    names: FreshNames | None = None
    added = 0
    for graph in every_graph(model.graph):
        if graph is model.graph:
            continue
        given: set[ir.Value] = set()
        for index, output in enumerate(graph.outputs):
            producer = output.producer()
            if producer is not None and producer.graph is graph and output not in given:
                given.add(output)
                continue
            names = names or FreshNames.of(model.graph)
            node = ir.node("Identity", [output], name=names.claim(f"{output.name}/Identity"))
            own = node.outputs[0]
            own.name, own.type, own.shape = names.claim(f"{output.name}.own"), output.type, output.shape
            graph.append(node)
            graph.outputs[index] = own
            added += 1
    return added


def drop_identities(model: ir.Model) -> int:
    """Remove each Identity whose input can take the place of its result, and return how many.

    Requires: functions are inlined. Ensures: outputs keep their names. One stays if it makes an output
    of a value that its graph does not compute, or that is an output already.
    """
    count = 0
    for node in list(every_node(model.graph)):
        if node.op_type != "Identity" or node.domain != "" or len(node.inputs) != 1:
            continue
        source, result = node.inputs[0], node.outputs[0]
        if (
            source is None
            or node.graph is None
            or (result.is_graph_output() and not _may_be_output(source, node))
        ):
            continue
        name, is_output = result.name, result.is_graph_output()
        source.shape, source.type = source.shape or result.shape, source.type or result.type
        ir.convenience.replace_all_uses_with(result, source, replace_graph_outputs=True)
        if is_output:
            source.name = name
        node.graph.remove(node, safe=True)
        count += 1
    return count


def _may_be_output(value: ir.Value, node: ir.Node) -> bool:
    producer = value.producer()
    return producer is not None and producer.graph is node.graph and not value.is_graph_output()


_ROUNDS = 3  # onnxscript's optimizer makes two, and its rewriter adds one
# By operator: the attribute that it got, and with which opset
NEWER_ATTRIBUTES = {"Reshape": ("allowzero", 14), "Split": ("num_outputs", 18)}
_HIDDEN = "ptq.hidden"  # a domain that nobody knows
SMALL_CONSTANT = 8192  # elements, folded whatever they come from: onnxscript's default
GROWTH = 8  # times the largest weight that a folded constant may have
# A few numbers make an output of any size
GROWING = ("ConstantOfShape", "Expand", "OneHot", "Pad", "Range", "Resize", "Tile", "Upsample")
COMPARED_FIRST = 64  # elements that tell most constants apart


def simplify(model: ir.Model) -> ir.Model:
    """Return the model with functions inlined, constants folded and what computes nothing removed.

    Requires: a model that the checker accepts. Ensures: every constant is an initializer of the main graph,
    and none is an input; equal ones are one. A weight that is transposed, reshaped or cast is folded however
    large. QuantizeLinear and DequantizeLinear stay, also of a constant.
    """
    from onnxscript.optimizer import fold_constants_ir
    from onnxscript.rewriter import RewriteRuleSet

    # Nothing may grow beyond the largest weight. What lies on disk is folded as it is read.
    sizes = [value.const_value.size for value in model.graph.initializers.values() if value.const_value]
    largest = SMALL_CONSTANT if is_large(model) else max([SMALL_CONSTANT, *sizes])
    model = passes.RemoveInitializersFromInputsPass()(inline_functions(model)).model
    rules = RewriteRuleSet([_ByOperator(_rules())])  # type: ignore[list-item]
    for _ in range(_ROUNDS):
        fold_lazily(model)
        with _hidden(model):
            folded = fold_constants_ir(
                model,
                onnx_shape_inference=not all_known(model.graph),
                input_size_limit=largest,
                output_size_limit=largest * GROWTH,
                should_fold=lambda node: None if _stays_small(node, largest * GROWTH) else False,
            )
        known = fold_known(model)
        applied = rules.apply_to_model(model)
        _keep_displaced_constants(model)
        model = _swept(model)
        if not applied and not folded.modified and not known:
            break
    for step in (
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        passes.LiftSubgraphInitializersToMainGraphPass(),
        passes.DeduplicateInitializersPass(),
        passes.CommonSubexpressionEliminationPass(),
    ):
        model = step(model).model
    _merge_large_constants(model)
    drop_identities(model)
    model = passes.RemoveUnusedNodesPass()(model).model
    own_nested_outputs(model)
    for last in (passes.OutputFixPass(), passes.NameFixPass(), passes.TopologicalSortPass()):
        model = last(model).model
    _without_newer_attributes(model)
    return model


@contextlib.contextmanager
def _hidden(model: ir.Model) -> Iterator[None]:
    """Hide from onnxscript's folding what it must not touch, but not the graphs in it."""
    # Of an If ``known_branch`` takes the branch. The inference of a Slice ends the process where folding
    # finds that its input has a negative size.
    hidden = [node for node in every_node(model.graph) if node.domain == "" and _is_hidden(node)]
    for node in hidden:
        node.domain = _HIDDEN
    try:
        yield
    finally:
        for node in hidden:
            node.domain = ""


def _is_hidden(node: ir.Node) -> bool:
    if node.op_type != "Slice" or not node.inputs or node.inputs[0] is None:
        return node.op_type == "If"
    value = node.inputs[0]
    if value.const_value is not None or made_by(value, "Shape") is not None:
        return False
    return value.shape is None or not all(isinstance(size, int) and size >= 0 for size in value.shape)


def _stays_small(node: ir.Node, limit: int) -> bool:
    """Tell before a node of constants is computed whether its result is worth it: it may take terabytes."""
    inputs = [item.const_value for item in node.inputs if item is not None]
    limit = max(limit, sum(tensor.size for tensor in inputs if tensor is not None))
    for output in node.outputs:
        shape = output.shape
        if shape is None or not all(isinstance(size, int) for size in shape):
            return node.op_type not in GROWING
        if math.prod(shape.numpy()) > limit:
            return False
    return True


def _keep_displaced_constants(model: ir.Model) -> None:
    """Make initializers again of constants that onnxscript's rules put others in the place of."""
    # They name a new constant for the value that is read: a second Flatten or Clip of that value takes the
    # place of the first one's constant, and a weight that has the name loses its own.
    inputs = (value for node in every_node(model.graph) for value in node.inputs if value is not None)
    displaced = {value for value in inputs if value.const_value is not None and value.producer() is None}
    lost = [value for value in displaced if not value.is_initializer() and not value.is_graph_input()]
    names = FreshNames.of(model.graph) if lost else None
    for value in sorted(lost, key=lambda item: item.name or ""):
        if names is not None:
            value.name = names.claim(f"{value.name}.kept")
        model.graph.register_initializer(value)


def _merge_large_constants(model: ir.Model) -> None:
    """Merge equal constants, of sizes that onnx_ir's pass leaves out, into one."""
    found: dict[tuple[object, ...], list[tuple[ir.Value, ir.TensorProtocol]]] = {}
    for value in list(model.graph.initializers.values()):
        tensor = value.const_value
        if isinstance(tensor, LAZY):
            continue  # Those on disk are too many to read.
        if tensor is None or tensor.dtype == ir.DataType.STRING or value.is_graph_output():
            continue
        begin = tensor.numpy().reshape(-1)[:COMPARED_FIRST].tobytes()
        alike = found.setdefault((tensor.dtype, tuple(tensor.shape.numpy()), begin), [])
        equal = next((one for one, other in alike if tensor.tobytes() == other.tobytes()), None)
        if equal is None:
            alike.append((value, tensor))
        else:
            value.replace_all_uses_with(equal)
            del model.graph.initializers[value.name or ""]


def _swept(model: ir.Model) -> ir.Model:
    for step in (
        passes.RemoveUnusedNodesPass(),
        passes.RemoveUnusedFunctionsPass(),  # type: ignore[no-untyped-call]
        passes.RemoveUnusedOpsetsPass(),
    ):
        model = step(model).model
    return model


class _ByOperator:
    """The rules as one, which tries at a node those alone that begin at its operator.

    ``RewriteRuleSet`` tries each rule at each node, and keeps the names of all that were applied: for a chain
    of N fused nodes that is N² of memory. This one has no name.
    """

    name: str | None = None
    as_function = False

    def __init__(self, rules: "Mapping[str, Sequence[RewriteRule]]") -> None:
        self._rules = rules
        self.remove_nodes = False  # Of the rule that was applied last, as RewriteRuleSet asks.

    def try_rewrite(self, model: ir.Model, graph: ir.Graph | ir.Function, node: ir.Node, **how: Any) -> Any:
        """Return the replacement by the first rule that matches, or None."""
        for rule in self._rules.get(node.op_type, ()):
            found = rule.try_rewrite(model, graph, node, **how)
            if found is not None:
                self.remove_nodes = rule.remove_nodes
                return found
        return None

    def graph_pre_visitor(self) -> None:
        """Prepare each rule for a graph."""
        for visit in self._visitors("graph_pre_visitor"):
            visit()

    def graph_post_visitor(self) -> None:
        """End each rule's work on a graph."""
        for visit in self._visitors("graph_post_visitor"):
            visit()

    def _visitors(self, name: str) -> Iterator[Callable[[], None]]:
        visitors = (getattr(rule, name) for rules in self._rules.values() for rule in rules)
        return (visit for visit in visitors if visit is not None)


def _rules() -> "dict[str, list[RewriteRule]]":
    """Return the rules by the operator that is the last of what each looks for."""
    from onnxscript.rewriter.rules import common

    return {
        **_neutral_rules(),
        "Dropout": [common.dropout_zero_rule, common.dropout_inference_rule],
        "Reshape": [
            common.two_reshapes_matmul_reshape_rule,
            common.one_reshape_matmul_reshape_rule,
            common.materialize_reshape_shape_rule,
            common.reshape_reshape_rule,
            common.squeeze_reshape_1d_rule,
        ],
        "Cast": [
            common.cast_constant_of_shape_rule,
            common.cast_constant_of_shape_without_value_rule,
            common.cast_cast_rule,
            common.no_op_cast_rule,
        ],
        "Slice": [common.collapse_slice_rule, common.collapse_slice2_rule],
        "Min": [common.min_min_rule, common.max_min_rule],
        "Max": [common.max_max_rule, common.min_max_rule],
        "Clip": [common.successive_clip_relu_rule, common.successive_clip_rule],
        "Relu": [common.successive_relu_clip_rule, common.successive_relu_rule],
        "Expand": [common.no_op_expand_rule],
        "Flatten": [common.flatten_to_reshape_rule],
        "Transpose": [common.no_op_transpose_rule, common.transpose_transpose_rule],
        "Unsqueeze": [common.unsqueeze_unsqueeze_rule],
        "ScatterND": [common.no_op_dynamic_scatter_nd_rule, common.no_op_static_scatter_nd_rule],
        "Conv": [
            common.normalize_pad_format_conv_rule,
            common.fuse_pad_into_conv_rule,
            common.remove_optional_bias_from_conv_rule,
        ],
        "ConvInteger": [
            common.normalize_pad_format_conv_integer_rule,
            common.fuse_pad_into_conv_integer_rule,
        ],
        "ConvTranspose": [common.remove_optional_bias_from_conv_transpose_rule],
        "Gemm": [common.remove_optional_bias_from_gemm_rule],
    }


def _neutral_rules() -> "dict[str, list[RewriteRule]]":
    """Return rules that drop what adds 0 or multiplies by 1."""
    # onnxscript's own take 1e-10 for 0: an epsilon that keeps a logarithm finite.
    from onnxscript.rewriter import RewriteRule, pattern

    def exactly(number: int) -> Any:
        return pattern.Constant(number, rel_tol=0.0, abs_tol=0.0)

    def same(op: Any, x: Any) -> Any:
        return op.Identity(x)

    return {
        "Mul": [*RewriteRule(lambda op, x: op.Mul(x, exactly(1)), same).commute()],
        "Add": [*RewriteRule(lambda op, x: op.Add(x, exactly(0)), same).commute()],
        "Sub": [RewriteRule(lambda op, x: op.Sub(x, exactly(0)), same)],
        "Div": [RewriteRule(lambda op, x: op.Div(x, exactly(1)), same)],
    }


def _without_newer_attributes(model: ir.Model) -> None:
    # They say nothing: a shape that onnxscript finds has no 0, and parts are equal, one for each output.
    opset = model.opset_imports.get("", 0)
    for op_type, (attribute, since) in NEWER_ATTRIBUTES.items():
        for node in every_node(model.graph) if opset < since else ():
            if node.op_type == op_type and node.domain == "":
                node.attributes.pop(attribute, None)
