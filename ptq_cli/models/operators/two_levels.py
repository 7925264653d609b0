"""4-bit floats with scales on two levels (NVFP4): a block of 16 has an E4M3 scale, and all blocks a float32.

TensorRT finds the scales of activations' blocks at each run, by an operator of its own.
"""

import onnx_ir as ir

from ptq_cli.models.operators.pair_operators import DEQUANTIZE

DOMAIN, DYNAMIC_QUANTIZE = "trt", "TRT_FP4DynamicQuantize"
BLOCK = 16
"""Values that share a scale, along the last axis."""
CARRIERS = ("Cast", "Transpose")
"""What may stand between the values and the operator that reads them."""


def is_dynamic_quantize(node: ir.Node | None) -> bool:
    """Return whether a node makes 4-bit floats of activations, and the scales of their blocks."""
    return node is not None and (node.domain, node.op_type) == (DOMAIN, DYNAMIC_QUANTIZE)


def is_four_bit(node: ir.Node | None) -> bool:
    """Return whether a node restores 4-bit floats."""
    if node is None or node.op_type != DEQUANTIZE or node.inputs[0] is None:
        return False
    source = node.inputs[0]
    return source.dtype == ir.DataType.FLOAT4E2M1 or (
        is_dynamic_quantize(source.producer()) and source.index() == 0
    )


def four_bit_source(value: ir.Value | None) -> ir.Node | None:
    """Return the DequantizeLinear of 4-bit floats that a value comes from, past a Cast or a Transpose."""
    producer = value.producer() if value is not None else None
    while producer is not None and producer.op_type in CARRIERS and producer.inputs[0] is not None:
        producer = producer.inputs[0].producer()
    return producer if is_four_bit(producer) else None


def is_in_two_levels(node: ir.Node) -> bool:
    """Return whether a node restores 4-bit floats or scales of their blocks, or turns what was restored."""
    if node.op_type == "Transpose" and node.inputs[0] is not None:
        return is_four_bit(node.inputs[0].producer())
    if node.op_type != DEQUANTIZE:
        return False
    return is_four_bit(node) or any(use.idx == 1 and is_four_bit(use.node) for use in node.outputs[0].uses())


def carries_four_bits(node: ir.Node) -> bool:
    """Return whether a node makes 4-bit floats, or stands between them and the operator that reads them."""
    if is_dynamic_quantize(node):
        return True
    return node.op_type in CARRIERS and four_bit_source(node.outputs[0]) is not None


def multiplies_four_bits(node: ir.Node) -> bool:
    """Return whether both factors of a product are 4-bit floats."""
    factors = node.inputs[:2]
    return len(factors) == 2 and all(four_bit_source(value) is not None for value in factors)
