"""Statistics become amax, amax becomes scale and zero point: pure functions.

``methods`` has one method a file, ``decide`` asks the one that a recipe names. Nothing here runs a model or
changes what was collected.
"""
