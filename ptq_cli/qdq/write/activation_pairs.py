"""Pass: each activation site gets a QuantizeLinear and a DequantizeLinear, and its readers read behind."""

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from ptq_cli.core.arithmetic import QuantParameters, quantize
from ptq_cli.core.formats import FLOAT4_E2M1, FLOAT8_E4M3FN, IntegerFormat
from ptq_cli.core.tensors import Array
from ptq_cli.models.graph_reading import FreshNames, every_node, every_value, input_at, short_name
from ptq_cli.plan.sites import ActivationSite, Plan
from ptq_cli.qdq.write.pair_nodes import add_initializer, make_dequantize, make_quantize
from ptq_cli.qdq.write.two_level_blocks import dynamic_pair


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
    """
    names = FreshNames.of(model.graph)
    quantized = {layer.name for layer in plan.layers if layer.quantized}
    for node in list(every_node(model.graph)):
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


Constants = tuple[ir.Value, ir.Value]
"""Scale and zero point."""
OPSET_OF_OUTPUT_TYPES = 21
"""QuantizeLinear got ``output_dtype``."""


def insert_activation_pairs(model: ir.Model, plan: Plan, parameters: Mapping[str, QuantParameters]) -> None:
    """Insert a pair behind each site's tensor, in the graph that computes it or is fed with it.

    Requires: every site names a value of the model. Ensures: no operator of an integer layer, or of one that
    is computed in float between pairs, reads a site's float value; in a nested graph it reads a
    DequantizeLinear of that graph, because a runtime fuses within one graph only.

    Where the tensor comes out of a float operator, float readers and the graph's output go on reading it as
    it is: that costs nothing, and keeps a residual stream exact. Where it comes out of an integer operator
    there is no float value to read; a site that is a graph output stays one, with its name, behind the pair.
    """
    names = FreshNames.of(model.graph)
    values = {value.name: value for value in every_value(model.graph)}
    # What makes integers itself reads floats, and returns them.
    made = {layer.name for layer in plan.layers if layer.quantized and not layer.dynamic}
    integer = made | {layer.name for layer in plan.layers if layer.between_pairs}
    # Sites that share parameters share the constants too, so that a reader of the file sees that.
    shared: dict[str, Constants] = {}
    clips = IntegerClips(model.graph, names)
    for site in plan.activations.values():
        if site.format == FLOAT4_E2M1:
            _insert_blocks(model.graph, values[site.tensor], parameters[site.tensor], integer, names)
            continue
        if site.source not in shared:
            shared[site.source] = _constants(model.graph, site, parameters[site.tensor], names)
        quantize = _insert_pair(model.graph, values[site.tensor], shared[site.source], integer, names)
        if isinstance(site.format, IntegerFormat) and site.format != site.format.whole:
            clips.put_behind(quantize, site.format)


def _insert_blocks(
    graph: ir.Graph, value: ir.Value, parameters: QuantParameters, integer: set[str], names: FreshNames
) -> None:
    """Let integer readers of a value read 4-bit floats in blocks, which are made at each run."""
    readers = [(node, index) for node, index in value.uses() if node.name in integer]
    scale = np.asarray(parameters.scale / np.float32(FLOAT8_E4M3FN.largest), np.float32)
    constant = add_initializer(graph, names.claim(f"{short_name(value.name or '')}.scale"), scale)
    nodes = dynamic_pair(graph, value, constant, names)
    producer, own = value.producer(), _graph_of(value)
    if producer is None:
        own.insert_before(next(iter(own)), nodes)
    else:
        own.insert_after(producer, nodes)
    for node, index in readers:
        node.replace_input_with(index, nodes[-1].outputs[0])


def _constants(
    graph: ir.Graph, site: ActivationSite, parameters: QuantParameters, names: FreshNames
) -> Constants:
    zeros = parameters.zero_point.astype(parameters.format.storage)
    return (
        add_initializer(graph, names.claim(f"{short_name(site.source)}.scale"), parameters.scale),
        add_initializer(graph, names.claim(f"{short_name(site.source)}.zero_point"), zeros),
    )


def _insert_pair(
    main: ir.Graph, value: ir.Value, constants: Constants, integer: set[str], names: FreshNames
) -> ir.Node:
    """Insert a pair, and return its QuantizeLinear."""
    producer, graph = value.producer(), _graph_of(value)
    from_integers = producer is not None and producer.name in integer
    readers = [(node, index) for node, index in value.uses() if from_integers or node.name in integer]
    is_output, prefix = from_integers and value.is_graph_output(), short_name(value.name or "")
    quantize = make_quantize(value, *constants, names.claim(f"{prefix}/QuantizeLinear"))
    if producer is None:
        graph.insert_before(next(iter(graph)), [quantize])
    else:
        graph.insert_after(producer, [quantize])
    # An integer operator needs one of its own graph; any other reads what its own graph, or one around, has.
    places = [node.graph if node.name in integer else graph for node, _ in readers]
    scale, zero_point = constants
    zeros = None if _may_be_left_out(main, zero_point) else zero_point
    restored: dict[object, ir.Value] = {}
    for place in dict.fromkeys([*([graph] if is_output else []), *places]):
        name = names.claim(f"{prefix}/DequantizeLinear")
        dequantize = make_dequantize(quantize.outputs[0], scale, zeros, name)
        restored[place] = dequantize.outputs[0]
        if place is graph:
            graph.insert_after(quantize, [dequantize])
        elif isinstance(place, ir.Graph):
            place.insert_before(next(iter(place)), [dequantize])
    for (reader, index), place in zip(readers, places, strict=True):
        reader.replace_input_with(index, restored[place])
    if is_output:
        _keep_output_name(graph, value, restored[graph], names)
    return quantize


def _graph_of(value: ir.Value) -> ir.Graph:
    if not isinstance(value.graph, ir.Graph):
        raise TypeError("a prepared model has no functions")
    return value.graph


def _may_be_left_out(graph: ir.Graph, zero_point: ir.Value) -> bool:
    """Return whether a DequantizeLinear says nothing of its zero point, which is 0 then.

    From opset 21 on ONNX Runtime 1.31 cannot load a model in which a Reshape, Squeeze or their like reads an
    int8 DequantizeLinear with one: it moves the pair behind the Reshape, and gives its QuantizeLinear a type
    that does not fit. Before opset 21 it is the other way round: without a zero point that pair is uint8.
    """
    array = zero_point.const_value.numpy() if zero_point.const_value is not None else None
    is_plain = array is not None and array.dtype == np.int8 and not array.any()
    return is_plain and graph.opset_imports.get("", 0) >= OPSET_OF_OUTPUT_TYPES


def _keep_output_name(graph: ir.Graph, value: ir.Value, restored: ir.Value, names: FreshNames) -> None:
    for index, output in enumerate(graph.outputs):
        if output is value:
            name = value.name
            value.name = names.claim(f"{name}.float")
            restored.name = name
            graph.outputs[index] = restored
