"""How a layer looks that makes integers of its activations at each run: its operators, and their names."""

CONV_INTEGER, MATMUL_INTEGER = "ConvInteger", "MatMulInteger"
DYNAMIC_QUANTIZE = "DynamicQuantizeLinear"
STEPS, MIDDLE = 127, 128
"""Of the integers of a row: how many there are on each side of zero, and which one zero is."""
SMALLEST = 1e-30
"""Of a row's largest value: a row of zeros is divided by its share, and stays one of zeros."""
OF_LAYER, OF_TENSOR = "/dynamic_int8/", "/dynamic_uint8/"
"""Between the name of a layer, or of a tensor, and that of an operator which is a part of it."""
