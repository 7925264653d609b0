"""Operators of quantized graphs, by name: those that quantize and dequantize, and those that read integers.

What may enter: what a single node or value says of itself; nothing about a target.
"""
