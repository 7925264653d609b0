"""Recovers accuracy that quantization has cost, from data and without gradients.

``rescale_model`` changes the float model before it is calibrated, by ``channel_factors``. ``range_choice``
chooses ranges by their effect, and ``ladder`` layers in float and bits; ``float_moves`` has what can be done
about a tensor or a weight, and what that costs.
``recover_rounding`` chooses the weights of a quantized model again, stage by stage: ``quantized_layer`` finds
the layers, ``layer_state`` and ``block_layer`` their constants, ``code_search`` and ``block_search`` the
integers. What may enter: what makes a quantized model better, and measures by how much.
"""
