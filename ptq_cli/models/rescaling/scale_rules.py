"""Which rule each operator has, and how a graph is read with them."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ptq_cli.models.graph.graph_reading import nested_graphs, rank_of
from ptq_cli.models.rescaling import joined_scales, layer_scales, moved_scales
from ptq_cli.models.rescaling.channel_ids import Ids
from ptq_cli.models.rescaling.scale_trace import ScaleTrace

Rule = Callable[[ScaleTrace, ir.Node], Ids | Sequence[Ids] | None]

UNCHANGED = (
    "Identity", "Dropout", "Relu", "LeakyRelu", "Abs", "Neg",
)  # fmt: skip
SPATIAL = (
    "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Resize", "Upsample",
)  # fmt: skip
NORMALIZATIONS = (
    "LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization", "InstanceNormalization",
    "GroupNormalization", "BatchNormalization",
)  # fmt: skip
RULES: Mapping[str, Rule] = {
    **dict.fromkeys(UNCHANGED, moved_scales.unchanged),
    **dict.fromkeys(SPATIAL, moved_scales.spatial),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), moved_scales.reshape),
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"), moved_scales.reduction),
    "PRelu": moved_scales.prelu,
    "Clip": moved_scales.clip,
    "Pad": moved_scales.pad,
    "Transpose": moved_scales.transpose,
    "Concat": moved_scales.concat,
    "Split": moved_scales.split,
    "Slice": moved_scales.slices,
    "Gather": moved_scales.gather,
    "DepthToSpace": moved_scales.depth_to_space,
    **dict.fromkeys(("Conv", "ConvTranspose"), layer_scales.convolution),
    "Gemm": layer_scales.gemm,
    "MatMul": layer_scales.matmul,
    **dict.fromkeys(NORMALIZATIONS, layer_scales.normalization),
    **dict.fromkeys(("Add", "Sub", "Sum", "Mean", "Max", "Min"), joined_scales.total),
    **dict.fromkeys(("Mul", "Div"), joined_scales.product),
}
"""By operator. What any other reads, stays as it is."""


def trace_scales(graph: ir.Graph) -> ScaleTrace:
    """Return what takes the factors of the channels of a graph, and which of them must share one.

    Requires: a prepared graph, whose constants are initializers, with the shapes that could be inferred.
    Ensures: whatever positive factors the channels get, those that are joined the same and those that are
    fixed 1, the constants that take them leave the outputs of the graph as they were. What nested graphs read
    is fixed.
    """
    trace = ScaleTrace(_tables(graph))
    for node in graph:
        rule = RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        found = rule(trace, node) if rule is not None and _is_float(node) else None
        if found is None:
            for value in node.inputs:
                if value is not None:
                    trace.channels.fix(trace.of(value))
        else:
            several = [found] if isinstance(found, np.ndarray) else found
            for value, ids in zip(node.outputs, several, strict=False):
                trace.note(value, ids)
        for inner in nested_graphs(node):
            for value in _captured(inner):
                trace.channels.fix(trace.of(value))
    for output in graph.outputs:
        trace.channels.fix(trace.of(output))
    return trace


def _tables(graph: ir.Graph) -> list[ir.Value]:
    """Return the matrices that Gathers look rows up in."""
    looked_up = (node.inputs[0] for node in graph if node.op_type == "Gather" and node.domain == "")
    return [value for value in looked_up if value is not None and _is_matrix(value)]


def _is_matrix(value: ir.Value) -> bool:
    """Tell whether a value is a constant with two axes."""
    return value.const_value is not None and len(value.const_value.shape) == 2


def _is_float(node: ir.Node) -> bool:
    value = node.outputs[0]
    return value.dtype == ir.DataType.FLOAT and rank_of(value) is not None


def _captured(graph: ir.Graph) -> set[ir.Value]:
    read = {value for node in graph.all_nodes() for value in node.inputs if value is not None}
    return {value for value in {*read, *graph.outputs} if value.graph is not graph}
