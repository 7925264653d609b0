"""Operators that quantize, dequantize or compute on integers, and which of them stand around a value.

Activations of fewer bits than their type have a Clip of integers between the two. 4-bit floats have scales on
two levels (NVFP4): E4M3 for a block of 16, float32 for all blocks; TensorRT finds those of activations at
each run, by an operator of its own.
"""

import onnx_ir as ir

from ptq_cli.models.graph_reading import input_at

# Beside all whose names begin with ``QLinear``
INTEGER_OPERATORS = (
    "ConvInteger",
    "DynamicQuantizeLSTM",
    "DynamicQuantizeMatMul",
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "QAttention",
    "QGemm",
)
RECURRENT = ("GRU", "LSTM", "RNN")  # float kernels, whose weights may be stored as integers


def is_integer_operator(op_type: str) -> bool:
    """Return whether an operator computes in integers by its name, whatever stands around it."""
    return op_type.startswith("QLinear") or op_type in INTEGER_OPERATORS


DYNAMIC_LSTM = "DynamicQuantizeLSTM"
MICROSOFT = "com.microsoft"  # the domain of ONNX Runtime's own operators
KERNEL_PARAMETERS = {1: 8, 2: 10}  # the input of the scale, by that of the weight; zero point next
KERNEL_INPUTS = 12  # eight of LSTM, then scale and zero point of W and of R
CONV_INTEGER, MATMUL_INTEGER = "ConvInteger", "MatMulInteger"
DYNAMIC_QUANTIZE = "DynamicQuantizeLinear"
ROW_STEPS, ROW_MIDDLE = 127, 128  # integers of a row on each side of zero, and zero itself
SMALLEST = 1e-30  # least largest value of a row: a row of zeros is divided by it
OF_LAYER, OF_TENSOR = "/dynamic_int8/", "/dynamic_uint8/"  # between the names of layer and operator


QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
QUANTIZING = (QUANTIZE, DEQUANTIZE, "DynamicQuantizeLinear")
CLAMPS = ("Clip", "Relu")  # merge into the kernel before them, or the QuantizeLinear behind


def is_pair_node(node: ir.Node | None) -> bool:
    """Tell whether a node is a QuantizeLinear or a DequantizeLinear, or clips the integers between them."""
    return node is not None and (node.op_type in (QUANTIZE, DEQUANTIZE) or clips_integers(node))


def clips_integers(node: ir.Node) -> bool:
    """Tell whether a node is a Clip of integers with constant bounds."""
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


DOMAIN, FP4_DYNAMIC_QUANTIZE = "trt", "TRT_FP4DynamicQuantize"
FP4_BLOCK = 16  # values that share a scale, along the last axis
CARRIERS = ("Cast", "Transpose")  # may stand between the values and their reader


def is_dynamic_quantize(node: ir.Node | None) -> bool:
    """Return whether a node makes 4-bit floats of activations, and the scales of their blocks."""
    return node is not None and (node.domain, node.op_type) == (DOMAIN, FP4_DYNAMIC_QUANTIZE)


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
