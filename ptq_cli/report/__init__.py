"""Two models and evaluation batches become metrics, a report and a verdict.

``metrics`` measure, ``evaluate`` runs both models once, ``document`` is the report as a value and as JSON,
``gate`` decides, ``summary`` and ``markdown`` render. The gate and the renderers read reports only: they
import nothing but the standard library, so that ``ptq gate`` answers at once.
"""
