"""Proof of a quantized file: kernels and outputs beside the graph as written, saturation, the verdict."""
