"""A user's Python callable as a source of batches.

What may enter: how it is called, and which values it may yield.
"""
