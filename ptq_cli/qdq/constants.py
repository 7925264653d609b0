"""Pass: weights and biases are stored as integers behind a DequantizeLinear."""

import numpy as np
import onnx_ir as ir

from ptq_cli.core.arithmetic import quantize
from ptq_cli.plan.sites import BiasSite, Plan, WeightSite
from ptq_cli.qdq.nodes import add_initializer, make_dequantize
from ptq_cli.qdq.parameters import Parameters, bias_scale, constant

INT32 = np.iinfo(np.int32)


def store_constants(model: ir.Model, plan: Plan, parameters: Parameters) -> None:
    """Store the weights and biases of a plan as integers.

    Requires: every site names a constant and a node that reads it. Ensures: the node reads a
    DequantizeLinear of integers, and a float constant that nobody reads any more is gone.
    """
    graph = model.graph
    nodes = {node.name: node for node in graph}
    for site in plan.weights:
        _store_weight(graph, nodes[site.node], site, parameters)
    for bias in plan.biases:
        _store_bias(graph, nodes[bias.node], bias, parameters)
    names = [site.tensor for site in plan.weights] + [site.tensor for site in plan.biases]
    for name in dict.fromkeys(names):
        if not graph.initializers[name].uses():
            del graph.initializers[name]


def _store_weight(graph: ir.Graph, node: ir.Node, site: WeightSite, parameters: Parameters) -> None:
    found = parameters.weights[site]
    # A weight that two layers share is stored once for each: their biases may ask for different scales.
    prefix = site.tensor if len(graph.initializers[site.tensor].uses()) == 1 else f"{node.name}.{site.tensor}"
    integers = quantize(constant(graph.initializers[site.tensor]), found)
    stored = add_initializer(graph, f"{prefix}.quantized", integers)
    scale = add_initializer(graph, f"{prefix}.scale", found.scale)
    zero_point = add_initializer(graph, f"{prefix}.zero_point", found.zero_point.astype(integers.dtype))
    dequantize = make_dequantize(stored, scale, zero_point, f"{prefix}/DequantizeLinear", site.axis)
    graph.insert_before(node, [dequantize])
    node.replace_input_with(site.input_index, dequantize.outputs[0])


def _store_bias(graph: ir.Graph, node: ir.Node, site: BiasSite, parameters: Parameters) -> None:
    prefix = site.tensor if len(graph.initializers[site.tensor].uses()) == 1 else f"{node.name}.{site.tensor}"
    values = constant(graph.initializers[site.tensor])
    scale = bias_scale(site, parameters)
    steps = np.rint(values.astype(np.float64) / scale.astype(np.float64))
    integers = np.clip(steps, INT32.min, INT32.max).astype(np.int32)
    stored = add_initializer(graph, f"{prefix}.quantized", integers)
    scale_value = add_initializer(graph, f"{prefix}.scale", scale)
    axis = 0 if scale.ndim else None
    dequantize = make_dequantize(stored, scale_value, None, f"{prefix}/DequantizeLinear", axis)
    graph.insert_before(node, [dequantize])
    node.replace_input_with(site.input_index, dequantize.outputs[0])
