"""Quantization to learned centers: soft while they are learned, hard where a model is exported.

What may enter: the assignment of elements to centers, its gradient, how centers are learned, and
their integers.
"""
