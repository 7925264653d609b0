"""Model files become one ``onnx_ir.Model``.

``detect`` tells what a file is by its content, the ``*_source`` files load it, ``export`` makes ONNX of
what PyTorch loaded, ``prepare`` cleans and names the graph, ``parity`` proves that it still computes the
same. Nothing here knows of data files: example inputs come in as arrays.
"""
