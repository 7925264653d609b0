"""What ``evaluate`` needs, and whatever reads an evaluation again: models, samples, measurements, reports.

What may enter: whatever measures a quantized model on data, or reads such a measurement again.
``opened_pass`` and ``evaluation_set`` find out that models and data fit, ``measure_models`` runs them from
the last checkpoint on, ``shards`` joins parts, ``reports`` and ``report_page`` tell of the whole.
"""
