"""How sure a metric is: intervals from samples that both models saw, one way of making them a file.

``bootstrap`` and ``scores`` import numpy, all else the standard library alone, so that ``ptq gate`` is quick.
"""
