"""``export``: from a recipe and a calibration to the quantized model.

``quantized_graph`` makes the graph of a plan (``placing``), ``recovery_data`` and its neighbors make it
better, ``exported_file`` writes it. What may enter: what becomes of a plan whose ranges and integers are
decided.
"""
