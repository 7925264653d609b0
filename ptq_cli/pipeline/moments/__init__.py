"""A second pass over the calibration data, once the ranges of activations are decided, for second moments.

What may enter: what runs the data for ``ptq_cli.recovery.moments``, in blocks that fit into memory.
"""
