"""What a model holds quantized already: it is kept, and nothing is quantized twice."""

import onnx_ir as ir

from ptq_cli.core.errors import NothingToQuantizeError
from ptq_cli.models.prepare import QUANTIZING


def quantizing_nodes(graph: ir.Graph) -> list[ir.Node]:
    """Return the nodes that quantize or dequantize.

    Raises:
        NothingToQuantizeError: one of them is in no pair that could be kept.
    """
    found = [node for node in graph if node.op_type in QUANTIZING]
    alone = next((node for node in found if not is_paired(node)), None)
    if alone is not None:
        raise quantized_already(alone)
    return found


def quantized_already(node: ir.Node) -> NothingToQuantizeError:
    """Return the error to raise for a model that leaves nothing to quantize."""
    return NothingToQuantizeError(
        f"the model is quantized already: it holds {node.op_type} '{node.name}'",
        hint="name the float model that it was made from",
    )


def is_paired(node: ir.Node) -> bool:
    """Tell whether a node is one of a pair that quantizes and dequantizes, or dequantizes a constant.

    Only such a form can be kept beside new pairs: a lone QuantizeLinear, or one whose range is found at run
    time, feeds integer operators that the target's rules know nothing of.
    """
    if node.op_type == "QuantizeLinear":
        readers = [use.node for use in node.outputs[0].uses()]
        return bool(readers) and all(
            reader.op_type == "DequantizeLinear" and list(reader.inputs[1:]) == list(node.inputs[1:])
            for reader in readers
        )
    if node.op_type != "DequantizeLinear" or node.inputs[0] is None:
        return False
    producer = node.inputs[0].producer()
    is_constant = node.inputs[0].const_value is not None
    return is_constant or (producer is not None and producer.op_type == "QuantizeLinear")


def dequantized_refusal(value: ir.Value) -> str:
    """Return why a value that comes from a DequantizeLinear is left alone, or an empty string."""
    producer = value.producer()
    if producer is None or producer.op_type != "DequantizeLinear":
        return ""
    return f"quantized already: '{value.name}' comes from DequantizeLinear '{producer.name}'"


def requantized_refusal(node: ir.Node) -> str:
    """Return why an operator whose result is quantized already is left alone, or an empty string."""
    readers = [use.node for use in node.outputs[0].uses() if use.node.op_type == "QuantizeLinear"]
    return f"quantized already: QuantizeLinear '{readers[0].name}' reads its result" if readers else ""
