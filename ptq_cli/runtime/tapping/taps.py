"""Inner tensors become visible: each tapped one is made an output of the main graph.

Tensors of nested graphs are handed out of them: of each branch, and of every step of a loop.
What a branch holds becomes one more output of its If; of the branch that is not taken it is empty. What a
step of a Loop holds is appended to a sequence that the Loop carries along, because its size may differ from
step to step. A Scan cannot carry a sequence, so it is written as the Loop that computes the same. The values
come out one after the other, on a single axis: their order and number are those of the steps.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ptq_cli.models.files.stored import StoredModel, serialize
from ptq_cli.models.graph_reading import FreshNames, every_value, nested_graphs, remove_unused


def tap(model: ir.Model, tensors: Sequence[str]) -> StoredModel:
    """Return the serialized model with ``tensors`` as its only outputs, in that order.

    Operators that no tapped tensor needs are removed, because ONNX Runtime would run them all the same. The
    inputs stay, needed or not, so that a batch fits. A tensor that is an input of the graph cannot be an
    output of it; the caller has it already. One of a nested graph is handed out on a single axis; see
    ``handed_out``.
    """
    tapped = model.clone()
    values = handed_out(tapped, tensors)
    tapped.graph.outputs[:] = [_as_output(values[name]) for name in tensors]
    remove_unused(tapped)
    return serialize(tapped)


def _as_output(value: ir.Value) -> ir.Value:
    value.type = value.type or ir.TensorType(ir.DataType.FLOAT)
    # A shape that was inferred for another batch size would not fit.
    value.shape = None
    return value


TO_THE_FIRST = np.iinfo(np.int64).min  # end of a Slice that goes backwards


def write_as_loop(graph: ir.Graph, scan: ir.Node, names: FreshNames) -> ir.Node:
    """Put a Loop in the place of a Scan, and return it.

    Requires: the Scan's outputs are stacked along their first axis. The Scan is removed; its graph becomes
    the Loop's.

    Source: ONNX Scan (opset 9 and later) and Loop (opset 13).
    """
    return _Rewrite(graph, scan, names).loop()


def take_over(old: list[ir.Value], new: list[ir.Value]) -> None:
    """Replace values by others, which take their names."""
    for before, value in zip(old, new, strict=True):
        name, value.type, value.shape = before.name, before.type, before.shape
        before.replace_all_uses_with(value, replace_graph_outputs=True)
        before.name, value.name = None, name


class _Rewrite:
    def __init__(self, graph: ir.Graph, scan: ir.Node, names: FreshNames) -> None:
        self._graph, self._scan, self._names = graph, scan, names
        (self._body,) = nested_graphs(scan)
        scanned = scan.attributes.get_int("num_scan_inputs", 1)
        self._carried = len(scan.inputs) - scanned
        self._axes = scan.attributes.get_ints("scan_input_axes", (0,) * scanned)
        self._backwards = scan.attributes.get_ints("scan_input_directions", (0,) * scanned)

    def loop(self) -> ir.Node:
        step = self._fed("step", ir.DataType.INT64)
        goes_on = self._fed("goes_on", ir.DataType.BOOL)
        count = self._count()
        elements = list(self._body.inputs)[self._carried :]
        self._body.inputs[:] = [step, goes_on, *list(self._body.inputs)[: self._carried]]
        self._take_elements(elements, step, count)
        still = ir.node("Identity", [goes_on], name=self._names.claim("Identity"))
        self._typed(still.outputs[0], "goes_on", ir.DataType.BOOL)
        self._body.append(still)
        self._body.outputs.insert(0, still.outputs[0])
        true = self._before("Constant", [], "true", ir.DataType.BOOL, {"value": ir.tensor(np.array(True))})
        return self._replaced([count, true, *self._scan.inputs[: self._carried]])

    def _replaced(self, inputs: list[ir.Value | None]) -> ir.Node:
        outputs = [ir.Value() for _ in self._scan.outputs]
        attributes = [ir.AttrGraph("body", self._body)]
        loop = ir.Node("", "Loop", inputs, attributes, outputs=outputs, name=self._scan.name)
        self._graph.insert_before(self._scan, [loop])
        take_over(list(self._scan.outputs), outputs)
        self._graph.remove(self._scan, safe=True)
        stacked = outputs[self._carried :]
        reverse = self._scan.attributes.get_ints("scan_output_directions", (0,) * len(stacked))
        for value, backwards in zip(stacked, reverse, strict=True):
            if backwards:
                self._turn_round(loop, value)
        return loop

    def _count(self) -> ir.Value:
        """Return the number of steps: the length of the first scanned input."""
        source, axis = self._scan.inputs[self._carried], self._axes[0]
        assert source is not None  # noqa: S101 - a Scan has its inputs
        shape = self._before("Shape", [source], "shape", ir.DataType.INT64)
        index = self._before("Constant", [], "axis", ir.DataType.INT64, _number(axis))
        return self._before("Gather", [shape, index], "count", ir.DataType.INT64)

    def _take_elements(self, elements: list[ir.Value], step: ir.Value, count: ir.Value) -> None:
        nodes = []
        index = {0: step}
        if any(self._backwards):
            one = self._before("Constant", [], "one", ir.DataType.INT64, _number(1))
            last = self._before("Sub", [count, one], "last", ir.DataType.INT64)
            nodes.append(ir.node("Sub", [last, step], name=self._names.claim("Sub")))
            index[1] = self._typed(nodes[0].outputs[0], "from_last", ir.DataType.INT64)
        sources = self._scan.inputs[self._carried :]
        for element, source, axis, way in zip(elements, sources, self._axes, self._backwards, strict=True):
            node = ir.node("Gather", [source, index[way]], {"axis": axis}, name=self._names.claim("Gather"))
            taken, name = node.outputs[0], element.name
            taken.type, taken.shape = element.type, element.shape
            element.replace_all_uses_with(taken, replace_graph_outputs=True)
            element.name, taken.name = None, name
            nodes.append(node)
        first = next(iter(self._body), None)
        if first is None:
            self._body.extend(nodes)
        else:
            self._body.insert_before(first, nodes)

    def _turn_round(self, loop: ir.Node, value: ir.Value) -> None:
        """Reverse a stacked output."""
        bounds = [np.array([number], np.int64) for number in (-1, TO_THE_FIRST, 0, -1)]
        constants = [ir.node("Constant", [], {"value": ir.tensor(bound)}) for bound in bounds]
        for node in constants:
            node.name = self._names.claim("bound")
            self._typed(node.outputs[0], "bound", ir.DataType.INT64)
        readers, name = list(value.uses()), value.name
        turned = ir.node("Slice", [value, *(node.outputs[0] for node in constants)])
        turned.name, result = self._names.claim("Slice"), turned.outputs[0]
        result.type, result.shape = value.type, value.shape
        is_output = value.is_graph_output()
        for reader, index in readers:
            reader.replace_input_with(index, result)
        if is_output:
            for index, output in enumerate(self._graph.outputs):
                if output is value:
                    self._graph.outputs[index] = result
        value.name, result.name = self._names.claim(f"{name}.backwards"), name
        self._graph.insert_after(loop, [*constants, turned])

    def _fed(self, wanted: str, dtype: ir.DataType) -> ir.Value:
        value = self._typed(ir.Value(), wanted, dtype)
        value.shape = ir.Shape([])
        return value

    def _typed(self, value: ir.Value, wanted: str, dtype: ir.DataType) -> ir.Value:
        value.name, value.type = self._names.claim(f"{self._scan.name}/{wanted}"), ir.TensorType(dtype)
        return value

    def _before(
        self,
        op_type: str,
        inputs: list[ir.Value],
        wanted: str,
        dtype: ir.DataType,
        attributes: dict[str, ir.TensorProtocol] | None = None,
    ) -> ir.Value:
        node = ir.node(
            op_type, inputs, attributes or {}, name=self._names.claim(f"{self._scan.name}/{op_type}")
        )
        self._graph.insert_before(self._scan, [node])
        return self._typed(node.outputs[0], wanted, dtype)


def _number(value: int) -> dict[str, ir.TensorProtocol]:
    return {"value": ir.tensor(np.array(value, np.int64))}


_Values = dict[str, ir.Value]  # by the tensor whose values they hold


def handed_out(model: ir.Model, tensors: Collection[str]) -> _Values:
    """Return a value of the main graph for each tensor: the tensor itself, or all its values on one axis.

    Requires: every nested tensor is in graphs of If, Loop and Scan only, and is float32. The model is changed
    in place where a tensor is in a nested graph.
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

    def from_inside(self, graph: ir.Graph) -> _Values:
        """Return the wanted values of the graphs nested in a graph, as values of this graph."""
        found: _Values = {}
        for node in list(graph):
            if any(self._wants(inner) for inner in nested_graphs(node)):
                found |= _KINDS[node.op_type](self, graph, node)
        return found

    def _wants(self, graph: ir.Graph) -> bool:
        return any(value.name in self._wanted for value in every_value(graph))

    def _on_one_axis(self, graph: ir.Graph) -> _Values:
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

    def _out_of_if(self, graph: ir.Graph, node: ir.Node) -> _Values:
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

    def _out_of_loop(self, graph: ir.Graph, node: ir.Node) -> _Values:
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

    def _out_of_scan(self, graph: ir.Graph, node: ir.Node) -> _Values:
        return self._out_of_loop(graph, write_as_loop(graph, node, self._names))


_KINDS: dict[str, Callable[[_Hands, ir.Graph, ir.Node], _Values]] = {
    "If": _Hands._out_of_if,
    "Loop": _Hands._out_of_loop,
    "Scan": _Hands._out_of_scan,
}
