"""The operators of ONNX that quantize and dequantize, by name."""

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
QUANTIZING = (QUANTIZE, DEQUANTIZE, "DynamicQuantizeLinear")
