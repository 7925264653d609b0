"""A Scan written as a Loop: it takes the slices itself, and computes the same to the bit."""

import numpy as np
import onnx_ir as ir

from ptq_cli.models.graph.fresh_names import FreshNames
from ptq_cli.models.graph.graph_reading import nested_graphs

TO_THE_FIRST = np.iinfo(np.int64).min
"""The end of a Slice that goes backwards over everything."""


def write_as_loop(graph: ir.Graph, scan: ir.Node, names: FreshNames) -> ir.Node:
    """Put a Loop in the place of a Scan, and return it.

    Requires: the Scan's outputs are stacked along their first axis.

    Source:
        ONNX Scan (opset 9 and later) and Loop (opset 13).

    Args:
        graph: that the Scan is in.
        scan: is removed; its graph becomes the Loop's.
        names: that are free.
    """
    return _Rewrite(graph, scan, names).loop()


def take_over(old: list[ir.Value], new: list[ir.Value]) -> None:
    """Let values be read instead of others, under their names."""
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
        """Let a stacked output begin with the last step."""
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
