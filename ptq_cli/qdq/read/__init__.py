"""Quantized files: their pairs, their constants, and the float graph that each stands for.

What may enter: what any file with Q/DQ says, whoever made it; no verdict on it.
"""
