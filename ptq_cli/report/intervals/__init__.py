"""How sure a metric is: intervals from samples that both models saw, one way of making them a file.

What may enter: an interval computed from numbers alone. ``interval``, ``flips``, ``score_interval`` and
``share_interval`` import the standard library alone, so that ``ptq gate`` is quick.
"""
