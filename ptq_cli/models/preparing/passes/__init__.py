"""Rewrites of the float graph before anything is measured on it; one rule a file.

``merged`` moves constants into layers. May enter: an
edit that computes the same on every input, to rounding, and that says in its docstring what it requires and
what it ensures. It counts how often it was applied, so that ``ptq export --float`` can say so. What
onnxscript's rules do well is called in ``simplify``, not written again.
"""
