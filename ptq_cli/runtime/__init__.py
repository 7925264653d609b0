"""ONNX Runtime: a model and a batch go in, arrays come out.

``session`` opens models with the right threads and errors, ``tapping`` makes inner tensors visible, and
``engine_registry`` has the runtimes that targets name. Nothing here looks at the values.
"""
