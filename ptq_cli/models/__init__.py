"""Model files become one ``onnx_ir.Model``.

``loading`` tells what a file is by its content, checks it and makes ONNX of it; ``preparing`` cleans,
rewrites and names the graph, and ``parity`` proves that it still computes the same. ``files`` is a model as
its files hold it; the files beside these rooms answer what others ask of a graph, its operators and its
inputs. Nothing here knows of data files: example inputs come in as arrays.
"""
