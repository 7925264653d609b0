"""An axis of a negative size is one of any size: some exporters write -1 for it.

ONNX's shape inference computes with such a size, and a Slice of it ends the process.
"""

from collections.abc import Iterator

import onnx

from ptq_cli.models.sparse import graphs_of


def forget_negative_sizes(proto: onnx.ModelProto) -> bool:
    """Leave out each negative size that a model says of its tensors, and tell whether there was any.

    Args:
        proto: is changed in place.
    """
    found = False
    for dimension in _dimensions(proto):
        if dimension.dim_value < 0:
            dimension.ClearField("dim_value")
            found = True
    return found


def _dimensions(proto: onnx.ModelProto) -> Iterator[onnx.TensorShapeProto.Dimension]:
    graphs = [*graphs_of(proto.graph)]
    infos = [info for graph in graphs for info in (*graph.input, *graph.output, *graph.value_info)]
    infos += [info for function in proto.functions for info in function.value_info]
    for info in infos:
        yield from info.type.tensor_type.shape.dim
