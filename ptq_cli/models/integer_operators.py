"""Which operators of a graph compute on integers, told by their names."""

INTEGER_OPERATORS = (
    "ConvInteger",
    "DynamicQuantizeLSTM",
    "DynamicQuantizeMatMul",
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "QAttention",
    "QGemm",
)
"""Beside all whose names begin with ``QLinear``."""

RECURRENT = ("GRU", "LSTM", "RNN")
"""Their weights may be stored as integers although they compute in float: the file is smaller."""


def is_integer_operator(op_type: str) -> bool:
    """Return whether an operator computes in integers by its name, whatever stands around it."""
    return op_type.startswith("QLinear") or op_type in INTEGER_OPERATORS


# ONNX Runtime's LSTM on integers, which quantizes its activations at each run: its name and its inputs.


DYNAMIC_LSTM = "DynamicQuantizeLSTM"
MICROSOFT = "com.microsoft"
"""Its domain, and that of all operators of ONNX Runtime's own."""
KERNEL_PARAMETERS = {1: 8, 2: 10}
"""By the input that is a weight: the input that is its scale; the zero point is the next one."""
KERNEL_INPUTS = 12
"""The eight of LSTM, then scale and zero point of W and of R."""


# How a layer looks that makes integers of its activations at each run: its operators, and their names.


CONV_INTEGER, MATMUL_INTEGER = "ConvInteger", "MatMulInteger"
DYNAMIC_QUANTIZE = "DynamicQuantizeLinear"
STEPS, MIDDLE = 127, 128
"""Of the integers of a row: how many there are on each side of zero, and which one zero is."""
SMALLEST = 1e-30
"""Of a row's largest value: a row of zeros is divided by its share, and stays one of zeros."""
OF_LAYER, OF_TENSOR = "/dynamic_int8/", "/dynamic_uint8/"
"""Between the name of a layer, or of a tensor, and that of an operator which is a part of it."""
