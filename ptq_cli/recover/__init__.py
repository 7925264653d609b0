"""Recovers accuracy that quantization has cost, from data and without gradients.

``rescale_model`` changes the float model before it is calibrated, by ``channel_factors``.
``recover_rounding`` chooses the weights of a quantized model again, stage by stage or each layer by itself:
``quantized_layer`` has a layer as matrices, ``code_search`` its integers. ``range_effects`` measures what the
ranges of activations cost. What may enter: what makes a quantized model better, and measures by how much.
"""
