"""Model files become one ``onnx_ir.Model``: loaders by content, export, preparation, parity with PyTorch."""
