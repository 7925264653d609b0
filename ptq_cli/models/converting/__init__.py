"""An ONNX graph becomes one of the opset that the quantized form needs.

What may enter: what a newer opset, or the library that converts to one, asks of a graph.
"""
