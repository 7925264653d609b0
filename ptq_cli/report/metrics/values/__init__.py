"""Metrics of outputs that are plain numbers: how far they are from the float model's, or from labels.

What may enter: metrics that need to know nothing of an output but its shape.
"""
