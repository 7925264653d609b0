"""Model files become one ``onnx_ir.Model``.

``loading`` tells what a file is by its content, checks it and makes ONNX of it; ``preparing`` cleans,
rewrites and names the graph, and ``parity`` proves that it still computes the same. ``files`` is a model as
its files hold it; ``graph``, ``operators`` and ``inputs`` answer what others ask of one. Nothing here knows
of data files: example inputs come in as arrays.
"""
