"""Pass: a Gemm whose weight is in blocks, with ``transB``, becomes one that reads its weight turned.

ONNX Runtime 1.31 merges a DequantizeLinear of blocks along axis 0 and a Gemm into MatMulNBits, and
leaves one along axis 1 with ``transB`` in the graph: the weight would be restored to floats at each run.
PyTorch's exporters write such Gemms.

Requires: what compares the graph with the float one layer by layer, as a recovery does, is done. Ensures: the
Gemm computes what it did; integers, scales and zero points that nobody else reads are stored turned; those of
a table of embeddings stay, with a Transpose behind each, which a runtime computes once, as it loads.
"""

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from ptq_cli.models.files.mapped_constants import moved_tensor
from ptq_cli.models.graph_reading import RESULT, FreshNames, input_at
from ptq_cli.models.pair_operators import dequantized_by
from ptq_cli.qdq.write.pair_nodes import make_dequantize, put_in_front

WEIGHT = 1
"""The input of a Gemm."""


def turn_gemms_of_blocks(model: ir.Model, layers: Collection[str]) -> int:
    """Turn the weights of Gemms, and return how many."""
    count, names = 0, FreshNames.of(model.graph)
    for node in [item for item in model.graph.all_nodes() if item.name in layers]:
        is_turned = node.op_type == "Gemm" and node.attributes.get_int("transB", 0) == 1
        dequantize = dequantized_by(input_at(node, WEIGHT)) if is_turned else None
        if dequantize is None or dequantize.attributes.get_int("axis", 1) != 1:
            continue
        size = dequantize.attributes.get_int("block_size", 0)
        integers, scale, *zeros = [
            _turned(model.graph, value, dequantize, names) for value in dequantize.inputs if value is not None
        ]
        name = names.claim(f"{dequantize.name}.turned")
        new = make_dequantize(integers, scale, zeros[0] if zeros else None, name, 0, size)
        put_in_front(node, new)
        node.replace_input_with(WEIGHT, new.outputs[0])
        node.attributes.pop("transB")
        _drop(model.graph, dequantize)
        count += 1
    return count


def _turned(graph: ir.Graph, value: ir.Value, reader: ir.Node, names: FreshNames) -> ir.Value:
    tensor, name = value.const_value, names.claim(f"{value.name}.turned")
    if tensor is None or any(node is not reader for node, _ in value.uses()):
        node = ir.node("Transpose", [value], {"perm": [1, 0]}, name=f"{name}/Transpose")
        output = node.outputs[0]
        output.name, output.type = f"{node.name}{RESULT}", value.type
        put_in_front(reader, node)
        return output
    turned = moved_tensor(tensor, np.transpose, name)
    shape = ir.Shape(turned.shape.numpy())
    found = ir.Value(name=name, shape=shape, type=ir.TensorType(turned.dtype), const_value=turned)
    graph.register_initializer(found)
    return found


def _drop(graph: ir.Graph, dequantize: ir.Node) -> None:
    """Remove a DequantizeLinear that nobody reads, and the constants that only it has read."""
    if dequantize.outputs[0].uses() or not isinstance(dequantize.graph, ir.Graph):
        return
    constants = [value for value in dequantize.inputs if value is not None]
    dequantize.graph.remove(dequantize, safe=True)
    for value in constants:
        if value.name in graph.initializers and not value.uses():
            del graph.initializers[value.name or ""]
