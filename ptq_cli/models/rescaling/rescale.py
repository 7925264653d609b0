"""Channels get factors: the constants that make them are multiplied, those that read them are divided."""

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from ptq_cli.models.graph.fresh_names import FreshNames
from ptq_cli.models.graph.graph_reading import input_at
from ptq_cli.models.preparing.rewriting.edit import set_constant
from ptq_cli.models.preparing.rewriting.match import floats_of
from ptq_cli.models.rescaling.channel_ids import Factors, Ids
from ptq_cli.models.rescaling.scale_trace import ScaledConstant, ScaleTrace


def rescale(graph: ir.Graph, trace: ScaleTrace, factors: Mapping[int, float]) -> int:
    """Multiply channels where they are made and divide them where they are read; return how many constants.

    Requires: ``trace`` is that of the graph as it is. Ensures: the outputs of the graph are what they were,
    to rounding; no node was added.

    Args:
        graph: is changed in place.
        trace: its channels.
        factors: by a channel's root, what it is multiplied by; 1 where there is none.

    Raises:
        ValueError: a factor is not a positive number.

    Example:
        >>> import onnx
        >>> text = '''<ir_version: 10, opset_import: ["": 17]>
        ...     g (float[n,2] x) => (float[n,2] y) <float[2,2] a = {1,2,3,4}, float[2,2] b = {1,1,1,1}>
        ...     { [up] h = MatMul(x, a) r = Relu(h) [down] y = MatMul(r, b) }'''
        >>> from onnx_ir.passes.common import ShapeInferencePass
        >>> from ptq_cli.models.rescaling.scale_rules import trace_scales
        >>> model = ShapeInferencePass()(ir.from_proto(onnx.parser.parse_model(text))).model
        >>> trace = trace_scales(model.graph)
        >>> rescale(model.graph, trace, {int(trace.layers[0].given[1]): 4.0})
        2
        >>> [model.graph.initializers[name].const_value.numpy().tolist() for name in "ab"]
        [[[1.0, 8.0], [3.0, 16.0]], [[1.0, 1.0], [0.25, 0.25]]]
    """
    if not all(0.0 < factor < np.inf for factor in factors.values()):
        raise ValueError("a factor is a positive number")
    table = np.ones(len(trace.channels))
    for root, factor in factors.items():
        table[root] = factor
    names = FreshNames.of(graph)
    return sum(_scale(item, trace, table, names) for item in trace.constants)


def _scale(item: ScaledConstant, trace: ScaleTrace, table: Factors, names: FreshNames) -> bool:
    value = input_at(item.node, item.index)
    array = floats_of(value)
    times, over = (_of(ids, trace, table) for ids in (item.times, item.over))
    if value is None or array is None or (np.all(times == 1.0) and np.all(over == 1.0)):
        return False
    scaled = (array.astype(np.float64) * times / over).astype(array.dtype)
    if scaled.shape != array.shape:  # A number for all becomes one for each channel, and no more than that.
        for axis in range(scaled.ndim):
            first = scaled.take([0], axis=axis)
            scaled = first if np.array_equal(np.broadcast_to(first, scaled.shape), scaled) else scaled
    set_constant(item.node, item.index, scaled, value.name or "", names)
    return True


def _of(ids: Ids | None, trace: ScaleTrace, table: Factors) -> Factors:
    return table[trace.channels.roots(ids)] if ids is not None else np.ones(1)
