"""Streaming metrics, one kind a file; ``metric_registry`` knows them by name, ``spec`` which are wanted.

A metric keeps what each sample added, never outputs. Only numpy may be imported here, except by the metric in
``named`` that takes a class of torchmetrics. Arrays arrive finite: ``evaluation`` has looked before.
"""
