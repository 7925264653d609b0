"""What a run holds, looked at: a calibration's tensors, one tensor explained, drawings of both.

What may enter: the numbers of a view or a drawing, and its file; the terminal draws its own.
"""
