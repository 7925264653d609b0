"""The Python API: one function with typed arguments for each command.

``stages`` calibrate, export and evaluate; ``views`` show what a model, a calibration or a report contains;
``proofs`` verify and measure files. The commands call the same functions of ``pipeline``.
"""
