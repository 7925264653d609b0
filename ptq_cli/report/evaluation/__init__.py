"""Models run over evaluation batches, once, and everything that is measured meanwhile.

What may enter: what needs a model's outputs, or its time; which metric of them, ``metrics`` knows.
"""
