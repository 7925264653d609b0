"""Quantizers in PyTorch, with straight-through gradients.

A file or folder for each family. What may enter: a function from a float tensor and its parameters to
integers or to the fake-quantized tensor, and its gradient. Not how the parameters are chosen (``amax``),
nor where a quantizer sits in a model (``plan``).

The names in ``__init__.pyi`` are the library that docs/quantizers.md describes. Importing this package
imports nothing; the first use of a name imports its file, and with it PyTorch.
``quantizers.round`` is not Python's.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
