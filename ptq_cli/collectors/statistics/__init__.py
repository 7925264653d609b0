"""What is kept of a tensor and of its channels: values that merge exactly.

What may enter: a commutative monoid under ``merge``, and what reads it.
"""
