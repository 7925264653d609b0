"""The parts of a model that are already quantized: they are kept, and nothing is quantized twice."""

import numpy as np
import onnx_ir as ir

from ptq_cli.core.errors import NothingToQuantizeError
from ptq_cli.models.graph_reading import input_at
from ptq_cli.models.pair_operators import DEQUANTIZE, QUANTIZE, QUANTIZING, dequantized_by, quantized_by


def quantizing_nodes(graph: ir.Graph) -> list[ir.Node]:
    """Return the nodes that quantize or dequantize.

    Raises:
        NothingToQuantizeError: one of them does not belong to a pair that could be kept.
    """
    found = [node for node in graph.all_nodes() if node.op_type in QUANTIZING]
    alone = next((node for node in found if not is_paired(node)), None)
    if alone is not None:
        raise quantized_already(alone)
    return found


def quantized_already(node: ir.Node) -> NothingToQuantizeError:
    """Return the error to raise for a model that leaves nothing to quantize."""
    return NothingToQuantizeError(
        f"the model is already quantized: it has {node.op_type} '{node.name}'",
        hint="pass the float model that it was made from",
    )


def is_paired(node: ir.Node) -> bool:
    """Tell whether a node is one of a pair that quantizes and dequantizes, or dequantizes a constant.

    Only this form can be kept next to new pairs: a single QuantizeLinear, or one whose range is found at run
    time, feeds integer operators that the target's rules do not cover.
    """
    if node.op_type == QUANTIZE:
        readers = [use.node for use in node.outputs[0].uses()]
        return bool(readers) and all(
            reader.op_type == DEQUANTIZE and has_parameters_of(node, reader) for reader in readers
        )
    if node.op_type != DEQUANTIZE or node.inputs[0] is None:
        return False
    producer = node.inputs[0].producer()
    is_constant = node.inputs[0].const_value is not None
    return is_constant or (producer is not None and producer.op_type == QUANTIZE)


def has_parameters_of(quantize: ir.Node, dequantize: ir.Node) -> bool:
    """Tell whether a DequantizeLinear has a QuantizeLinear's scale and zero point; a missing one is 0."""
    if list(dequantize.inputs[1:]) == list(quantize.inputs[1:]):
        return True
    zeros = input_at(quantize, 2)
    known = zeros.const_value if zeros is not None else None
    is_zero = known is not None and not np.any(known.numpy())
    return is_zero and input_at(dequantize, 2) is None and dequantize.inputs[1] is quantize.inputs[1]


def dequantized_refusal(value: ir.Value) -> str:
    """Return why a value that comes from a DequantizeLinear is left alone, or an empty string."""
    node = dequantized_by(value)
    return f"already quantized: '{value.name}' comes from DequantizeLinear '{node.name}'" if node else ""


def requantized_refusal(node: ir.Node) -> str:
    """Return why an operator whose result is already quantized is left alone, or an empty string."""
    readers = quantized_by(node.outputs[0])
    return f"already quantized: QuantizeLinear '{readers[0].name}' reads its result" if readers else ""
