"""Constants beside a layer go into its weight and bias.

What may enter: a pass after which an operator with a constant is gone, and the layer before it has other
constants.
"""
