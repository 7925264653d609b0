"""``export``: from a recipe and a calibration to the quantized model.

``settings`` says what each tensor is asked to be, ``ranges`` what the statistics give it, ``placing`` what
the target makes of both. What may enter: what each tensor is asked to be, what the target allows, and the
ranges and integers decided.
"""
