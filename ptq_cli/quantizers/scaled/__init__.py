"""The scaled quantizer: an amax for the whole tensor or along an axis decides a uniform grid.

What may enter: the descriptor, the tensor functions, the module with its calibrator, and the forms that share
their amax: affine, learned amax, and eight-bit floats.
"""
