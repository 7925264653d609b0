"""A target's table: what it may say, where it comes from, and how it is checked against ONNX.

What may enter: the tables themselves (``tables``) and their reading; no graph.
"""
