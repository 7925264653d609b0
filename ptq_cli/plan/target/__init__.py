"""A target's table: what it may say, where it comes from, and how it is checked against ONNX.

What may enter: the tables themselves and their reading; no graph.
"""
