"""Streaming metrics, one kind a file; ``metric_registry`` knows them by name, and which are wanted.

A metric keeps what each sample added, never outputs. Only numpy may be imported here, except by
``torch_metric``, which takes a class of torchmetrics. Arrays arrive finite: ``evaluation`` has looked before.
"""
