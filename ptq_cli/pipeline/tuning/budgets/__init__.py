"""What a tuning may lose, and how long it may take; and whether a candidate keeps to that.

What may enter: from measurements to bounds and verdicts. No model is run here.
"""
