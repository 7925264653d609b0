"""Streaming metrics, one kind a file; ``registry`` knows them by name.

A metric keeps sums, and what each sample added to them, never outputs. Only numpy may be imported here, and
arrays arrive finite: ``report.outputs`` has refused NaN and Inf before.
"""
