"""The stages composed: a recipe goes in, a run directory comes out.

One verb a file, in folders: ``calibration``, ``exporting``, ``evaluation``, ``proof``, ``drawing``. They
return values and print nothing. ``api`` is the public Python API: the same functions with typed arguments.
"""
