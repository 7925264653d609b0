"""Metrics of outputs that score classes: of a sample, or of each of its pixels.

What may enter: metrics that compare the chosen class or the scores, with labels or with the float model's.
"""
