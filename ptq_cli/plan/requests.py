"""Requests from an operator that gets faster up to tensors to quantize, and ties that share a scale."""

import math
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ptq_cli.models.graph_reading import constant_shape, every_node, input_at, sole_reader
from ptq_cli.plan.attention_masks import MASKED, carries_mask
from ptq_cli.plan.graph_questions import is_constant
from ptq_cli.plan.left_layers import dequantized_refusal, requantized_refusal
from ptq_cli.plan.refusals import (
    Reasons,
    Rules,
    attribute_refusal,
    clamp_behind,
    clamp_refusal,
    float_refusal,
    input_fused_behind,
    moved_from,
    moved_inputs,
    moved_outputs,
    moved_to,
    output_refusal,
    reader_refusal,
    rule_of,
    table_refusal,
)
from ptq_cli.plan.target.rules import OpRule


@dataclass(frozen=True)
class Groups:
    """Tensors that share parameters.

    Attributes:
        sources: by tensor, the tensor that its group is named after: the group's first measured tensor.
        unions: by source, the tensors whose statistics decide together, if there are several.
    """

    sources: Mapping[str, str]
    unions: Mapping[str, tuple[str, ...]]


class Ties:
    """Collects which tensors must have equal parameters, in any order.

    Values that are only moved do not need their own statistics, because their source has them. Where an
    operator ties its inputs and outputs, each is measured, and the union of the values decides.
    """

    def __init__(self) -> None:
        self._moved: dict[str, str] = {}
        self._tied: list[tuple[str, ...]] = []

    def move(self, output: str, source: str) -> None:
        """Note that ``output`` holds only values of ``source``."""
        self._moved[output] = source

    def tie(self, names: Iterable[str]) -> None:
        """Note that the quantized ones among them share one scale and zero point; one of them is."""
        self._tied.append(tuple(names))

    def groups(self, order: Iterable[str]) -> Groups:
        """Return the groups of the tensors in ``order``; a tensor comes after those that it is made from."""
        roots: dict[str, str] = {}
        for name in order:
            moved_from = self._moved.get(name)
            roots[name] = roots[moved_from] if moved_from is not None else name
        place = {name: index for index, name in enumerate(roots)}
        parents = {name: name for name in roots}
        for names in self._tied:
            tops = {_top(parents, roots[name]) for name in names if name in roots}
            first, *others = sorted(tops, key=place.__getitem__)
            parents.update(dict.fromkeys(others, first))
        members: dict[str, list[str]] = {}
        for name, root in roots.items():
            if name == root:
                members.setdefault(_top(parents, name), []).append(name)
        unions = {source: tuple(found) for source, found in members.items() if len(found) > 1}
        return Groups({name: _top(parents, root) for name, root in roots.items()}, unions)


def _top(parents: dict[str, str], name: str) -> str:
    while parents[name] != name:
        parents[name] = parents[parents[name]]  # halves the path, so that long chains are cheap
        name = parents[name]
    return name


_ARITHMETIC = ("Add", "Sub", "Mul", "Div")
# Activation functions and moves that are looked past for an operator that they are merged into.
MOST_FUSED = 8


class Requests:
    """The requests so far, and what follows from them.

    Attributes:
        asked: the tensors to quantize.
        integer: names of the layers that are computed in integers.
        dynamic: names of those that are, with ranges of their activations that they find at each run.
        bias_adds: names of the Adds that are the bias of a MatMul.
        reasons: by a layer's name, why it is float, or what happens to it instead of computing.
        ties: which tensors share parameters.
    """

    def __init__(self, rules: Rules, refused: Reasons) -> None:
        self.rules = rules
        self.asked: set[str] = set()
        self.integer: set[str] = set()
        self.dynamic: set[str] = set()
        self.bias_adds: set[str] = set()
        self.reasons: dict[str, str] = {}
        self.ties = Ties()
        self._refused = refused
        self._refusals: dict[ir.Value, str] = {}
        self._waiting: list[ir.Value] = []

    def ask(self, value: ir.Value) -> None:
        """Request a quantized tensor, and everything that follows from it.

        A chain of operators may be as long as the graph, so follow-up requests wait in a list instead of
        being recursive calls.
        """
        self._waiting.append(value)
        while self._waiting:
            self._ask_next(self._waiting.pop())

    def mark(self, node: ir.Node, reason: str = "") -> None:
        """Note that a layer is computed in integers."""
        self.integer.add(node.name or "")
        self.reasons[node.name or ""] = reason

    def mark_dynamic(self, node: ir.Node, reason: str) -> None:
        """Note that a layer is computed in integers that it makes of floats, and makes floats of."""
        self.dynamic.add(node.name or "")
        self.reasons[node.name or ""] = reason

    def refusal(self, value: ir.Value) -> str:
        """Return why a tensor must not be quantized, or an empty string."""
        if (value.name or "") in self._refused:
            return self._refused[value.name or ""]
        if value not in self._refusals:
            self._refusals[value] = self._find_refusal(value)
        return self._refusals[value]

    def _find_refusal(self, value: ir.Value) -> str:
        if reason := dequantized_refusal(value):
            return reason
        if carries_mask(value):
            return MASKED
        producer = value.producer()
        rule = self.rules.of(producer)
        # Between quantized tensors the runtime would compute it in integers, whatever this plan says.
        if producer is not None and rule is not None and (rule.kind == "join" or rule.image_axis):
            reason = attribute_refusal(producer, rule) or reader_refusal(producer, rule)
            if reason:
                return f"reads {producer.op_type} '{producer.name}': {reason}"
        return self._fused_wrongly(value) or self._shifted_wrongly(value) or float_refusal(value)

    def _shifted_wrongly(self, value: ir.Value) -> str:
        """Return which operator with a constant vector a runtime would wrongly merge, or nothing."""
        node = value.producer()
        if not self.rules.target.shifts_wrongly or node is None or node.op_type not in _ARITHMETIC:
            return ""
        computed = [item for item in node.inputs if item is not None and not is_constant(item)]
        vectors = [item for item in node.inputs if math.prod(constant_shape(item)) > 1]
        if len(computed) != 1 or not vectors or sole_reader(computed[0]) is not None:
            return ""
        return f"behind {node.op_type} '{node.name}' a quantization would be merged with its constant wrongly"

    def _fused_wrongly(self, value: ir.Value) -> str:
        """Return which operator a runtime would wrongly merge with a value's quantization, or nothing."""
        node, is_changed = value.producer(), False
        for _ in range(MOST_FUSED):
            rule = rule_of(node, self.rules.target)
            if node is None or (rule is not None and rule.kind in ("compute", "stored")):
                return ""
            if rule is not None and rule.fuses_wrongly:
                is_float = is_changed or any(map(self.refusal, moved_inputs(node, rule)))
                why = f"behind {node.op_type} '{node.name}' in float, a quantization would be merged wrongly"
                return why if is_float else ""
            inputs = [item for item in node.inputs if item is not None and not is_constant(item)]
            if len(inputs) != 1:
                return ""
            is_changed |= rule is None or rule.kind != "same"
            node = inputs[0].producer()
        return ""

    def _ask_next(self, value: ir.Value) -> None:
        producer = value.producer()
        rule = self.rules.of(producer) if (value.name or "") not in self.asked else None
        self.asked.add(value.name or "")
        if producer is not None and rule is not None and rule.kind in _FOLLOW:
            _FOLLOW[rule.kind](self, producer, rule)

    def _follow_move(self, node: ir.Node, rule: OpRule) -> None:
        inputs, outputs = moved_inputs(node, rule), moved_outputs(node, rule)
        reasons = [attribute_refusal(node, rule), output_refusal(node, len(outputs)), table_refusal(node)]
        reason = next(filter(None, [*reasons, *map(self.refusal, inputs)]), "")
        if reason or not inputs:
            self.reasons[node.name or ""] = reason
            return
        self.mark(node, "moves integers")
        for output in outputs:
            self.ties.move(output.name or "", inputs[0].name or "")
        self.ties.tie(value.name or "" for value in inputs)
        self._waiting += [*inputs, *outputs]

    def _follow_clamp(self, clamp: ir.Node, _rule: OpRule) -> None:
        if clamp_refusal(clamp):
            return
        symmetric = self.rules.target.activation.symmetric
        gone = "is merged into the operator before it" if symmetric else "disappears into the quantized range"
        self.reasons[clamp.name or ""] = gone if symmetric else f"{gone} of its result"
        before = clamp.inputs[0].producer() if clamp.inputs[0] is not None else None
        rule = self.rules.of(before)
        if before is None or rule is None:
            return
        if clamp_behind(before, self.rules) is not clamp:
            # Without the clamp, the operator's result is read by a QuantizeLinear and by others, and ONNX
            # Runtime does not compute an operator in integers if its result is also read as floats.
            needs_output = rule.output == "always" or rule.clamp_asks or rule.kind == "join"
            if needs_output and (before.name or "") in self.integer:
                self._waiting.append(before.outputs[0])
            return
        if rule.kind == "join":
            self._follow_join(before, rule)
        if (before.name or "") in self.integer:
            self.mark(clamp, f"part of {before.name}")

    def _follow_join(self, node: ir.Node, rule: OpRule) -> None:
        if (node.name or "") in self.integer or (node.name or "") in self.bias_adds:
            return
        fused = input_fused_behind(node, rule)
        inputs = [value for value in moved_inputs(node, rule) if value is not fused]
        own = [requantized_refusal(node), attribute_refusal(node, rule), reader_refusal(node, rule)]
        if reason := next(filter(None, [*own, *map(self.refusal, inputs)]), ""):
            self.reasons[node.name or ""] = reason
            return
        before = fused.producer() if fused is not None else None
        self.mark(node, f"merged into {before.name or ''}" if before is not None else "")
        if rule.ties:
            clamp = clamp_behind(node, self.rules)  # if there is one, its result is the join's
            outputs = [item.outputs[0] for item in (node, clamp) if item is not None]
            self.ties.tie(value.name or "" for value in (*inputs, *outputs))
        self._waiting += inputs

    def ask_captured(self, graph: ir.Graph) -> None:
        """Request the moved integers that nested graphs read: a pair behind them loses nothing.

        Without it ONNX Runtime 1.31 moves its own transposes of an integer convolution to a Transpose or
        Reshape there, looks for the reader among the ordinary inputs of the If or Loop, and crashes.
        """
        for node, _ in self.rules.ruled(graph, "same"):
            for value in node.outputs:
                is_captured = any(reader.graph is not node.graph for reader, _ in value.uses())
                if is_captured and self._is_restored(value):
                    self.ask(value)

    def trapped(self, graph: ir.Graph, stored: Container[str]) -> dict[str, str]:
        """Return the sites to remove, with the reason: those after an operator that must stay float.

        The weights of ``stored`` layers are integers already, so that the runtime does not quantize them.
        """
        found = {}
        for node in every_node(graph):
            if not (why := self._apart(node, stored)):
                continue
            inputs = [value for value in node.inputs if value is not None and not float_refusal(value)]
            taken = self._taken_input(node)
            if inputs and all(value is taken or self._is_restored(value) for value in inputs):
                reason = f"reads {node.op_type} '{node.name}', which must not be integer: {why}"
                names = [value.name or "" for value in moved_from(node.outputs[0], self.rules.target)]
                found.update({name: reason for name in names if name in self.asked})
        return found

    def _taken_input(self, node: ir.Node) -> ir.Value | None:
        """Return the result of an integer operator that would take a join which the user keeps in float."""
        plain = rule_of(node, self.rules.target)
        taken = input_fused_behind(node, plain) if plain is not None and plain.kind == "join" else None
        before = taken.producer() if taken is not None else None
        return taken if before is not None and (before.name or "") in self.integer else None

    def _apart(self, node: ir.Node, stored: Container[str]) -> str:
        """Return why an operator must not stand between quantized tensors, or an empty string."""
        target, rule, name = self.rules.target, self.rules.of(node), node.name or ""
        if rule is not None and rule.kind == "apart":
            return rule.note
        plain = rule_of(node, target)
        if plain is None or plain.kind != "compute" or name in self.integer or name in stored:
            return ""
        weight = input_at(node, plain.weight)
        is_float = weight is not None and is_constant(weight)
        if not is_float or not target.weight_rule(node.op_type).quantizes_floats:
            return ""
        return self.rules.excluded.get(name) or self.reasons.get(name, "")

    def _is_restored(self, value: ir.Value) -> bool:
        """Tell whether a value comes from a DequantizeLinear, possibly moved since then."""
        # Readers of a float operator's result read the float value, whether it is quantized or not.
        asked = (item for item in moved_to(value, self.rules.target) if item.name in self.asked)
        producers = (item.producer() for item in asked)
        return any(node is not None and (node.name or "") in self.integer for node in producers)


_FOLLOW: dict[str, Callable[[Requests, ir.Node, OpRule], None]] = {
    "same": Requests._follow_move,
    "join": Requests._follow_join,
    "clamp": Requests._follow_clamp,
}
