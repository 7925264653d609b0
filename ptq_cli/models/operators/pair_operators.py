"""The operators of ONNX that quantize and dequantize, and which of them stand around a value.

Activations of fewer bits than their type have a Clip of integers between the two.
"""

import onnx_ir as ir

from ptq_cli.models.graph.graph_reading import input_at

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
QUANTIZING = (QUANTIZE, DEQUANTIZE, "DynamicQuantizeLinear")


def is_pair_node(node: ir.Node | None) -> bool:
    """Tell whether a node is a QuantizeLinear or a DequantizeLinear, or clips the integers between them."""
    return node is not None and (node.op_type in (QUANTIZE, DEQUANTIZE) or clips_integers(node))


def clips_integers(node: ir.Node) -> bool:
    """Tell whether a node is a Clip of integers with constant bounds.

    Example:
        >>> text = '''<ir_version: 10, opset_import: ["": 20]> g (uint8[n] x) => (uint8[n] y)
        ...     <uint8 low = {0}, uint8 high = {15}> { y = Clip(x, low, high) }'''
        >>> clips_integers(ir.from_onnx_text(text).graph[0])
        True
    """
    if node.op_type != "Clip":
        return False
    bounds = [input_at(node, index) for index in (1, 2)]
    known = [item.const_value for item in bounds if item is not None]
    return len(known) == len(bounds) and all(
        item is not None and not item.dtype.is_floating_point() for item in known
    )


def integer_clip_behind(quantize: ir.Node) -> ir.Node | None:
    """Return the Clip that keeps the integers of a QuantizeLinear within fewer bits; None without one."""
    uses = tuple(quantize.outputs[0].uses())
    found = uses[0].node if len(uses) == 1 else None
    return found if found is not None and clips_integers(found) else None


def integers_of(quantize: ir.Node) -> ir.Value:
    """Return the integers that a QuantizeLinear makes, behind the Clip that keeps them within fewer bits."""
    return (integer_clip_behind(quantize) or quantize).outputs[0]


def quantizer_of(integers: ir.Value | None) -> ir.Node | None:
    """Return the QuantizeLinear that makes integers, past a Clip of them; None if there is none."""
    producer = integers.producer() if integers is not None else None
    if producer is not None and clips_integers(producer):
        source = producer.inputs[0]
        producer = source.producer() if source is not None else None
    return producer if producer is not None and producer.op_type == QUANTIZE else None


def dequantized_by(value: ir.Value | None) -> ir.Node | None:
    """Return the DequantizeLinear that a value comes right out of; None if it comes from elsewhere."""
    producer = value.producer() if value is not None else None
    return producer if producer is not None and producer.op_type == DEQUANTIZE else None


def quantized_by(value: ir.Value) -> list[ir.Node]:
    """Return the QuantizeLinears that read a value."""
    return [node for node, _ in value.uses() if node.op_type == QUANTIZE]
