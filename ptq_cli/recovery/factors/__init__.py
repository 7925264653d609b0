"""A float model's channels get factors before it is calibrated, so that its quantized form loses less.

``space_samples`` reads what groups of channels hold, ``find_factors`` finds their factors, and
``rescale_model`` keeps them if the model that ``plain_quantization`` makes is better for them. What may
enter: what changes a float model without changing what it computes.
"""
