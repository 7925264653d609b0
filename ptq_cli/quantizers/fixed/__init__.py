"""Fixed point: a number of bits, of which some are integer, times a scale that is a power of two or learned.

What may enter: the grid, its automatic scale, rounding to it with a straight-through gradient, and its
integers.
"""
