"""PyTorch's files become ONNX: programs, checkpoints, modules, and the archives they lie in.

What may enter: what PyTorch's loaders and its exporter need, and what a hostile archive could do.
"""
