"""A model, a plan and parameters become the quantized model.

Each file is a pass or a proof: ``weights`` and ``biases`` store constants as integers behind a
DequantizeLinear, ``activations`` inserts the pairs, ``structure`` proves that the result is well formed,
``fusion`` asks ONNX Runtime what became integer. ``quantize`` runs them in order.
"""
