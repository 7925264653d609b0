"""Two models on the same data: measured once, with intervals, analyzed, and judged.

``metrics`` measure, ``interval`` and ``bootstrap`` say how sure that is, ``runs`` feeds their outputs to
the metrics once. ``document`` is the report as a value and as JSON, ``report_changes`` compares two
reports, ``analysis`` says which layers lose what, ``decide_gates`` decides. What may enter: whatever
measures or judges two models, as values. Nothing here draws (``report``) or knows of a run directory.
"""
