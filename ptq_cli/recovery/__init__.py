"""Recovers accuracy that quantization has cost, from data and without gradients.

``factors`` changes the float model before it is calibrated. ``recover_rounding`` and ``weigh_rounding``
choose the weights of a quantized model again: ``layers`` has a layer as matrices, ``search`` its integers.
``range_effects`` measures what the ranges of activations cost, on ``samples``. What may enter: what makes a
quantized model better, and measures by how much.
"""
