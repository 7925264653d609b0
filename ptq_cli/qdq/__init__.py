"""A model, a plan and parameters become the quantized model.

``parameters`` decides the scale and zero point of every site. Then each file is a pass or a proof:
``constants`` stores weights and biases as integers behind a DequantizeLinear, ``activations`` inserts the
pairs, ``structure`` proves that the result is well formed, ``fusion`` asks ONNX Runtime what became integer.
``quantize`` runs them in order.
"""
