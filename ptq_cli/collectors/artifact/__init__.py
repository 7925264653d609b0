"""The calibration file: statistics of all tensors, what they were made from, and which share they are.

What may enter: saving, loading and merging whole calibrations.
"""
