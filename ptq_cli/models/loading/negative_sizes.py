"""An axis of a negative size is one of any size: some exporters write -1 for it.

ONNX's shape inference computes with such a size, and a Slice of it ends the process.
"""

from collections.abc import Iterator

import onnx
import onnx_ir as ir

from ptq_cli.models.loading.sparse import graphs_of


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


def forget_sizes_of_values(model: ir.Model) -> None:
    """Do the same to a model that is loaded already, beside its external data.

    Args:
        model: is changed in place.
    """
    values = [value for graph in model.graphs() for value in graph.inputs]
    values += [value for node in model.graph.all_nodes() for value in node.outputs]
    for value in values:
        sizes = list(value.shape or ())
        if any(isinstance(size, int) and size < 0 for size in sizes):
            value.shape = ir.Shape([None if isinstance(size, int) and size < 0 else size for size in sizes])


def _dimensions(proto: onnx.ModelProto) -> Iterator[onnx.TensorShapeProto.Dimension]:
    graphs = [*graphs_of(proto.graph)]
    infos = [info for graph in graphs for info in (*graph.input, *graph.output, *graph.value_info)]
    infos += [info for function in proto.functions for info in function.value_info]
    for info in infos:
        yield from info.type.tensor_type.shape.dim
