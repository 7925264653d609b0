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
    """Return whether an operator computes in integers by its name, whatever stands around it.

    Example:
        >>> is_integer_operator("QLinearConv"), is_integer_operator("Conv")
        (True, False)
    """
    return op_type.startswith("QLinear") or op_type in INTEGER_OPERATORS
