"""``export``: from a recipe and a calibration to the quantized model.

What may enter: what each tensor is asked to be, what the target allows, and the ranges and integers decided.
"""
