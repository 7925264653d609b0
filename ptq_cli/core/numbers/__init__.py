"""Integers and floats of few bits: their formats, what shares one scale, and the arithmetic of quantization.

What may enter: definitions that every room computes with, in numpy. Not how a scale is chosen (``amax``), nor
PyTorch (``quantizers``).
"""
