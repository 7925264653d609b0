"""Streaming metrics, one kind a file; ``metric_registry`` knows them by name, ``spec`` which are wanted.

A metric keeps what each sample added, never outputs. Only numpy may be imported here, except by
``torch_metric``, which is imported where a class of torchmetrics is named. Arrays arrive finite:
``evaluation`` has looked before.
"""
