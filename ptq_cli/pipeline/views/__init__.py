"""What a run holds, looked at: a calibration's tensors, one tensor explained, a drawing of it.

What may enter: the numbers of a view or a drawing, and its file; the terminal draws its own.
"""
