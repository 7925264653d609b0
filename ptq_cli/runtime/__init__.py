"""ONNX Runtime: a model and a batch go in, arrays come out.

``session`` opens sessions with the right threads and errors, ``taps`` makes inner tensors visible. Nothing
here looks at the values.
"""
