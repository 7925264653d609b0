"""ONNX Runtime: a model and a batch go in, arrays come out.

``sessions`` opens models with the right threads and errors, ``tapping`` makes inner tensors visible, and
``engines`` has the runtimes that targets name. Nothing here looks at the values.
"""
