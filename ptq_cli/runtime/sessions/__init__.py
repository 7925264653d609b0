"""ONNX Runtime's sessions, and what its operators and types can and cannot do.

What may enter: what a model needs so that a session opens and computes what the file says.
"""
