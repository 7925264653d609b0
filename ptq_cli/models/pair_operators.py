"""The operators of ONNX that quantize and dequantize, and which of them stand around a value."""

import onnx_ir as ir

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
QUANTIZING = (QUANTIZE, DEQUANTIZE, "DynamicQuantizeLinear")


def is_pair_node(node: ir.Node | None) -> bool:
    """Tell whether a node is a QuantizeLinear or a DequantizeLinear."""
    return node is not None and node.op_type in (QUANTIZE, DEQUANTIZE)


def dequantized_by(value: ir.Value | None) -> ir.Node | None:
    """Return the DequantizeLinear that a value comes right out of; None if it comes from elsewhere."""
    producer = value.producer() if value is not None else None
    return producer if producer is not None and producer.op_type == DEQUANTIZE else None


def quantized_by(value: ir.Value) -> list[ir.Node]:
    """Return the QuantizeLinears that read a value."""
    return [node for node, _ in value.uses() if node.op_type == QUANTIZE]
