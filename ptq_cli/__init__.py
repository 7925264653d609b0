"""Calibrate a trained model, quantize it, export ONNX with Q/DQ, and prove what that cost in accuracy."""

__version__ = "0.1.0"
