"""Functions that a graph writes out become the operators that ONNX has for them.

What may enter: a pass that replaces several operators, or an unusual one, by the one that targets know.
"""
