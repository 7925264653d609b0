"""Metrics that the user named: a class or a function from a file or a package, or a class of torchmetrics.

What may enter: code that makes a metric of what others wrote, and checks what it returns.
"""
