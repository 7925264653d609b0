"""A float graph and its quantized twin in stages, each of which runs in either form.

What may enter: how the two graphs are cut, and how the stages run; which form is wanted, callers say.
"""
