"""ONNX Runtime: a model and a batch go in, arrays come out.

``session`` opens sessions with the right threads and errors, ``taps`` makes inner tensors visible, and
``engines`` has the runtimes that targets name. Nothing here looks at the values.
"""
