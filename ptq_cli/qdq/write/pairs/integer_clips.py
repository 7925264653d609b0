"""Pass: integers of fewer bits than their type are clipped behind each QuantizeLinear.

ONNX Runtime has kernels for 8 bits alone. A QuantizeLinear saturates at the ends of its type, so that a grid
of 16 steps needs a Clip; behind one of integers, the operators around it keep their integer kernels.
"""

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from ptq_cli.core.numbers.arithmetic import QuantParameters, quantize
from ptq_cli.core.numbers.formats import IntegerFormat
from ptq_cli.core.tensors import Array
from ptq_cli.models.graph.fresh_names import FreshNames
from ptq_cli.models.graph.graph_reading import input_at
from ptq_cli.plan.sites import Plan
from ptq_cli.qdq.write.pair_nodes import add_initializer


class IntegerClips:
    """Puts Clips behind QuantizeLinears; those of one format share their bounds."""

    def __init__(self, graph: ir.Graph, names: FreshNames) -> None:
        """Take the main graph, which holds the bounds, and its names."""
        self._graph, self._names = graph, names
        self._bounds: dict[IntegerFormat, tuple[ir.Value, ir.Value]] = {}

    def put_behind(self, node: ir.Node, format: IntegerFormat) -> None:
        """Let what reads a QuantizeLinear read its integers within the ends of a format.

        Requires: the QuantizeLinear makes integers of the format's type.
        """
        if format not in self._bounds:
            self._bounds[format] = (self._bound(format, "low"), self._bound(format, "high"))
        made = node.outputs[0]
        readers = tuple(made.uses())
        clip = ir.node("Clip", [made, *self._bounds[format]], name=self._names.claim(f"{node.name}/Clip"))
        result = clip.outputs[0]
        result.name = self._names.claim(f"{clip.name}.output")
        result.type, result.shape = made.type, made.shape
        for reader, index in readers:
            reader.replace_input_with(index, result)
        assert isinstance(node.graph, ir.Graph)  # noqa: S101 - a QuantizeLinear was inserted into one
        node.graph.insert_after(node, clip)

    def _bound(self, format: IntegerFormat, end: str) -> ir.Value:
        value = format.qmin if end == "low" else format.qmax
        name = self._names.claim(f"{format.name}.{end}")
        return add_initializer(self._graph, name, np.asarray(value, format.storage))


def widen_clamps(model: ir.Model, plan: Plan, parameters: Mapping[str, QuantParameters]) -> None:
    """Move the bounds of a float Clip to the ends of all 8 bits, where a Clip of integers does its work.

    Requires: the pairs are not there yet. Ensures: the integers stay the same, and ONNX Runtime finds the
    float Clip redundant; with its own bounds, inside the ends of 8 bits, it computes the operator before it
    in float.

    Args:
        model: the float model; is changed in place.
        plan: made for it.
        parameters: of each activation, by the tensor's name.
    """
    names = FreshNames.of(model.graph)
    quantized = {layer.name for layer in plan.layers if layer.quantized}
    for node in list(model.graph.all_nodes()):
        site = plan.activations.get(node.outputs[0].name or "") if node.op_type == "Clip" else None
        if site is None or node.name not in quantized or not isinstance(site.format, IntegerFormat):
            continue
        if site.format == site.format.whole:
            continue
        grid = parameters[site.tensor]
        for index, end in ((1, site.format.whole.qmin), (2, site.format.whole.qmax)):
            bound = input_at(node, index)
            constant = bound.const_value if bound is not None else None
            if constant is None or not _reaches(constant.numpy(), grid, is_upper=index == 2):
                continue
            value = np.asarray((end - int(grid.zero_point)) * grid.scale, constant.numpy().dtype)
            role = "max" if index == 2 else "min"
            made = add_initializer(model.graph, names.claim(f"{node.name}.{role}"), value)
            node.replace_input_with(index, made)


def _reaches(bound: Array, grid: QuantParameters, *, is_upper: bool) -> bool:
    """Tell whether a bound becomes an end of the grid: what is beyond it then becomes that end, too."""
    if bound.size != 1:
        return False
    found = int(quantize(bound.astype(np.float32).reshape(()), grid))
    return found == (grid.format.qmax if is_upper else grid.format.qmin)
