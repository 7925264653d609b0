"""What is drawn: a tensor's histogram with its ranges, a quantizer's staircase.

What may enter: the numbers of a drawing, and its file; the terminal draws its own.
"""
