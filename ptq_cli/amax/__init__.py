"""Statistics become amax, amax becomes scale and zero point: pure functions, one method a file.

Nothing here runs a model or changes what was collected.
"""
