"""The Python API: the verbs with typed arguments, one function each.

``stages`` calibrate, export and evaluate; ``views`` look at what there is; ``proofs`` prove and measure
files.
The commands are thin over the same functions of ``pipeline``.
"""
