"""Pass: each activation site gets a QuantizeLinear and a DequantizeLinear, and its readers read behind."""

from collections.abc import Mapping

import onnx_ir as ir

from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.plan.sites import ActivationSite, Plan
from ptq_cli.qdq.nodes import add_initializer, make_dequantize, make_quantize


def insert_activation_pairs(model: ir.Model, plan: Plan, parameters: Mapping[str, QuantParameters]) -> None:
    """Insert a pair behind each site's tensor.

    Requires: every site names a value of the graph. Ensures: no reader of a site's tensor reads the float
    value; a site that is a graph output stays one, with its name, behind the pair.
    """
    graph = model.graph
    values = {value.name: value for value in graph.inputs}
    values.update({value.name: value for node in graph for value in node.outputs})
    for site in plan.activations.values():
        _insert_pair(graph, values[site.tensor], site, parameters[site.tensor])


def _insert_pair(graph: ir.Graph, value: ir.Value, site: ActivationSite, parameters: QuantParameters) -> None:
    readers = list(value.uses())
    scale = add_initializer(graph, f"{site.source}.scale", parameters.scale)
    zeros = parameters.zero_point.astype(parameters.format.storage)
    zero_point = add_initializer(graph, f"{site.source}.zero_point", zeros)
    quantize = make_quantize(value, scale, zero_point, f"{site.tensor}/QuantizeLinear")
    dequantize = make_dequantize(quantize.outputs[0], scale, zero_point, f"{site.tensor}/DequantizeLinear")
    producer = value.producer()
    if producer is None:
        first = next(iter(graph))
        graph.insert_before(first, [quantize, dequantize])
    else:
        graph.insert_after(producer, [quantize, dequantize])
    restored = dequantize.outputs[0]
    for reader, index in readers:
        reader.replace_input_with(index, restored)
    _keep_output_name(graph, value, restored)


def _keep_output_name(graph: ir.Graph, value: ir.Value, restored: ir.Value) -> None:
    for index, output in enumerate(graph.outputs):
        if output is value:
            name = value.name
            value.name = f"{name}.float"
            restored.name = name
            graph.outputs[index] = restored
