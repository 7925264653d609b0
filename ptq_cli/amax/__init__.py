"""Statistics become amax, amax becomes scale and zero point: pure functions.

``percentile``, ``entropy`` and ``mse`` are the methods, ``decide`` asks the one that a recipe names, and
alone changes a scale after that. Nothing here runs a model or changes what was collected.
"""
