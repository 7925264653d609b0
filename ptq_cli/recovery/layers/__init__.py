"""One layer in matrix form: what it reads, what it should make, and the integers that come nearest.

What may enter: what is computed for a layer alone, whichever rung asks.
"""
