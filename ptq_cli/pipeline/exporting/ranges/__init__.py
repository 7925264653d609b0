"""Ranges of tensors from a calibration's statistics, and what they cost.

What may enter: what follows from statistics and settings alone; no model is run.
"""
