"""Tensors of nested graphs are handed out of them: of each branch, and of every step of a loop.

What a branch holds becomes one more output of its If; of the branch that is not taken it is empty. What a
step of a Loop holds is appended to a sequence that the Loop carries along, because its size may differ from
step to step. A Scan cannot carry a sequence, so it is written as the Loop that computes the same. The values
come out one after the other, on a single axis: their order and number are those of the steps.
"""

from collections.abc import Callable, Collection, Mapping

import numpy as np
import onnx_ir as ir

from ptq_cli.models.graph.fresh_names import FreshNames
from ptq_cli.models.graph.graph_reading import every_value, nested_graphs
from ptq_cli.runtime.tapping.scan_as_loop import take_over, write_as_loop

Values = dict[str, ir.Value]
"""By the name of the tensor whose values they hold."""


def handed_out(model: ir.Model, tensors: Collection[str]) -> Values:
    """Return a value of the main graph for each tensor: the tensor itself, or all its values on one axis.

    Requires: every nested tensor is in graphs of If, Loop and Scan only, and is float32.

    Args:
        model: is changed in place where a tensor is in a nested graph.
        tensors: names of values that the model computes.

    Raises:
        KeyError: a name is not that of a computed tensor; this cannot happen with a plan for this model.
    """
    hands = _Hands(model, tensors)
    found = hands.from_inside(model.graph)
    found |= {value.name or "": value for node in model.graph for value in node.outputs}
    return {name: found[name] for name in tensors}


class _Hands:
    def __init__(self, model: ir.Model, wanted: Collection[str]) -> None:
        self._main, self._wanted = model.graph, frozenset(wanted)
        self._names = FreshNames.of(model.graph)
        self._constants: dict[str, ir.Value] = {}

    def from_inside(self, graph: ir.Graph) -> Values:
        """Return the wanted values of the graphs nested in a graph, as values of this graph."""
        found: Values = {}
        for node in list(graph):
            if any(self._wants(inner) for inner in nested_graphs(node)):
                found |= _KINDS[node.op_type](self, graph, node)
        return found

    def _wants(self, graph: ir.Graph) -> bool:
        return any(value.name in self._wanted for value in every_value(graph))

    def _on_one_axis(self, graph: ir.Graph) -> Values:
        """Return the wanted values of a nested graph, each on one axis."""
        found = self.from_inside(graph)
        values = [*graph.inputs, *(value for node in graph for value in node.outputs)]
        line = self._constant("line", np.array([-1], np.int64))
        for value in values:
            if (name := value.name or "") in self._wanted:
                found[name] = self._append(graph, "Reshape", [value, line], name)
        return found

    def _append(
        self,
        graph: ir.Graph,
        op_type: str,
        inputs: list[ir.Value],
        name: str,
        attributes: Mapping[str, int] | None = None,
    ) -> ir.Value:
        node = ir.node(op_type, inputs, attributes or {}, name=self._names.claim(f"{name}/{op_type}"))
        graph.append(node)
        return self._typed(node.outputs[0], name)

    def _typed(self, value: ir.Value, name: str, *, sequence: bool = False) -> ir.Value:
        tensor = ir.TensorType(ir.DataType.FLOAT)
        value.name = self._names.claim(f"{name}.handed_out")
        value.type = ir.SequenceType(tensor) if sequence else tensor
        return value

    def _constant(self, wanted: str, array: np.ndarray) -> ir.Value:
        if wanted not in self._constants:
            tensor = ir.tensor(array, name=self._names.claim(f"ptq.{wanted}"))
            value = ir.val(tensor.name, tensor.dtype, tensor.shape.numpy(), const_value=tensor)
            self._main.register_initializer(value)
            self._constants[wanted] = value
        return self._constants[wanted]

    def _out_of_if(self, graph: ir.Graph, node: ir.Node) -> Values:
        branches = nested_graphs(node)
        found = {branch: self._on_one_axis(branch) for branch in branches}
        names = list(dict.fromkeys(name for values in found.values() for name in values))
        nothing = self._constant("nothing", np.zeros(0, np.float32))
        for branch, values in found.items():
            for name in names:
                own = values.get(name)
                branch.outputs.append(own or self._append(branch, "Identity", [nothing], name))
        first = len(node.outputs)
        node.resize_outputs(first + len(names))
        del graph
        return {name: self._typed(node.outputs[first + index], name) for index, name in enumerate(names)}

    def _out_of_loop(self, graph: ir.Graph, node: ir.Node) -> Values:
        (body,) = nested_graphs(node)
        found, carried = self._on_one_axis(body), len(body.inputs) - 2
        nothing = self._constant("nothing", np.zeros(0, np.float32))
        begin = []
        for index, (name, value) in enumerate(found.items()):
            begin.append(self._before(graph, node, "SequenceConstruct", [nothing], name))
            taken = self._typed(ir.Value(), name, sequence=True)
            body.inputs.append(taken)
            longer = self._append(body, "SequenceInsert", [taken, value], name)
            longer.type = taken.type
            body.outputs.insert(1 + carried + index, longer)
        old = list(node.outputs)
        outputs = [ir.Value() for _ in range(len(old) + len(found))]
        # The number of steps and the condition may be left out, and have their places all the same.
        left_out = [None] * (2 + carried - len(node.inputs))
        loop = ir.Node(
            "", "Loop", [*node.inputs, *left_out, *begin], node.attributes.values(), outputs=outputs
        )
        loop.name = node.name
        graph.insert_before(node, [loop])
        lists = {name: outputs[carried + index] for index, name in enumerate(found)}
        take_over(old, [*outputs[:carried], *outputs[carried + len(found) :]])
        graph.remove(node, safe=True)
        for name, value in lists.items():
            self._typed(value, name, sequence=True)
        joined = {}
        for name, value in lists.items():
            item = ir.node("ConcatFromSequence", [value], {"axis": 0})
            item.name = self._names.claim(f"{name}/ConcatFromSequence")
            graph.insert_after(loop, [item])
            joined[name] = self._typed(item.outputs[0], name)
        return joined

    def _before(
        self, graph: ir.Graph, place: ir.Node, op_type: str, inputs: list[ir.Value], name: str
    ) -> ir.Value:
        node = ir.node(op_type, inputs, name=self._names.claim(f"{name}/{op_type}"))
        graph.insert_before(place, [node])
        return self._typed(node.outputs[0], name, sequence=True)

    def _out_of_scan(self, graph: ir.Graph, node: ir.Node) -> Values:
        return self._out_of_loop(graph, write_as_loop(graph, node, self._names))


_KINDS: dict[str, Callable[[_Hands, ir.Graph, ir.Node], Values]] = {
    "If": _Hands._out_of_if,
    "Loop": _Hands._out_of_loop,
    "Scan": _Hands._out_of_scan,
}
