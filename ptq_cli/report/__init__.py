"""Two models and evaluation batches become metrics, a report and a verdict.

``metrics`` measure, ``interval`` and ``bootstrap`` say how sure that is, ``evaluation`` runs the models once.
``document`` is the report as a value and as JSON, ``report_changes`` sets two reports side by side,
``decide_gates`` decides, ``text`` and ``html`` render. ``analysis`` finds where accuracy is lost, ``proof``
holds what is known for certain. The gate and the texts read reports only: they import nothing but the
standard library, so that ``ptq gate`` answers at once.
"""
