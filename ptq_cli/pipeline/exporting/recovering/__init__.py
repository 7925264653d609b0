"""What the rungs of recovery need of an export, and what they did to it.

What may enter: samples, effects and choices of ranges; the rungs themselves are in ``recovery``.
"""
