"""Names of operators that compute on integers, and of those that a layer with dynamic scales is made of."""

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
STEPS, MIDDLE = 127, 128  # integers of a row on each side of zero, and zero itself
SMALLEST = 1e-30  # least largest value of a row: a row of zeros is divided by it
OF_LAYER, OF_TENSOR = "/dynamic_int8/", "/dynamic_uint8/"  # between the names of layer and operator
