"""``export``: from a recipe and a calibration to the quantized model.

``decide_model`` decides the scales and integers of a plan, ``decided_once`` shares them among models;
``run_export`` writes the graph once, with ``written_metadata``, which ``exported_file`` reads. What may
enter: what becomes of a plan whose ranges and integers are decided.
"""
