"""Model files become one ``onnx_ir.Model``.

``detect`` tells what a file is by its content, ``open`` loads it, ``onnx_source`` and ``torch_sources`` make
ONNX of what was loaded, ``prepare`` cleans and names the graph, ``parity`` proves that it still computes the
same. Nothing here knows of data files: example inputs come in as arrays.
"""
