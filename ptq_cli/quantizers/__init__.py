"""Quantizers in PyTorch, with straight-through gradients.

Each file holds one family. What may enter: a function from a float tensor and its parameters to
integers or to the fake-quantized tensor, and its gradient. Not how the parameters are chosen (``amax``),
nor where a quantizer sits in a model (``plan``).
"""
