"""Pass: each activation site gets a QuantizeLinear and a DequantizeLinear, and its readers read behind."""

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.models.fresh_names import FreshNames
from ptq_cli.plan.sites import ActivationSite, Plan
from ptq_cli.qdq.write.pair_nodes import add_initializer, make_dequantize, make_quantize

Constants = tuple[ir.Value, ir.Value]
"""Scale and zero point."""
OPSET_OF_OUTPUT_TYPES = 21
"""QuantizeLinear got ``output_dtype``."""


def insert_activation_pairs(model: ir.Model, plan: Plan, parameters: Mapping[str, QuantParameters]) -> None:
    """Insert a pair behind each site's tensor.

    Requires: every site names a value of the graph. Ensures: no operator of an integer layer, or of one that
    is computed in float between pairs, reads a site's float value. Where the tensor comes out of a float
    operator, float readers and the graph's output go on reading it as it is: that costs nothing, and keeps a
    residual stream exact. Where it comes out of an integer operator there is no float value to read; a site
    that is a graph output stays one, with its name, behind the pair.
    """
    graph, names = model.graph, FreshNames.of(model.graph)
    values = {value.name: value for value in graph.inputs}
    values.update({value.name: value for node in graph for value in node.outputs})
    integer = {layer.name for layer in plan.layers if layer.quantized or layer.between_pairs}
    # Sites that share parameters share the constants too, so that a reader of the file sees that.
    shared: dict[str, Constants] = {}
    for site in plan.activations.values():
        if site.source not in shared:
            shared[site.source] = _constants(graph, site, parameters[site.tensor], names)
        _insert_pair(graph, values[site.tensor], shared[site.source], integer, names)


def _constants(
    graph: ir.Graph, site: ActivationSite, parameters: QuantParameters, names: FreshNames
) -> Constants:
    zeros = parameters.zero_point.astype(parameters.format.storage)
    return (
        add_initializer(graph, names.claim(f"{site.source}.scale"), parameters.scale),
        add_initializer(graph, names.claim(f"{site.source}.zero_point"), zeros),
    )


def _insert_pair(
    graph: ir.Graph, value: ir.Value, constants: Constants, integer: set[str], names: FreshNames
) -> None:
    producer = value.producer()
    from_integers = producer is not None and producer.name in integer
    readers = [(node, index) for node, index in value.uses() if from_integers or node.name in integer]
    quantize = make_quantize(value, *constants, names.claim(f"{value.name}/QuantizeLinear"))
    scale, zero_point = constants
    dequantize = make_dequantize(
        quantize.outputs[0],
        scale,
        None if _may_be_left_out(graph, zero_point) else zero_point,
        names.claim(f"{value.name}/DequantizeLinear"),
    )
    if producer is None:
        graph.insert_before(next(iter(graph)), [quantize, dequantize])
    else:
        graph.insert_after(producer, [quantize, dequantize])
    restored = dequantize.outputs[0]
    for reader, index in readers:
        reader.replace_input_with(index, restored)
    if from_integers:
        _keep_output_name(graph, value, restored, names)


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
