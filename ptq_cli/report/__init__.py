"""Two models and evaluation batches become metrics, a report and a verdict.

``metrics`` measure, ``evaluate`` runs both models once, ``document`` is the report as a value and as JSON,
``gate`` decides, ``summary`` and ``markdown`` render, ``html`` makes a page. The gate and the renderers read
reports only: they import nothing but the standard library, so that ``ptq gate`` answers at once. The page
needs Jinja2, and shows what else a run holds.
"""
