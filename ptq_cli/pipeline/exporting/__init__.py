"""``export``: from a recipe and a calibration to the quantized model.

``decided_model`` decides the scales and integers of a plan (``placement``), ``recovering`` chooses them again
by the samples of ``recovery_data``; ``run_export`` writes the graph once, with the metadata of
``exported_file``. What may enter: what becomes of a plan whose ranges and integers are decided.
"""
