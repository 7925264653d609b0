"""Quantizers of other makers beside ptq; each runs in a Python of its own, so none is needed here."""
