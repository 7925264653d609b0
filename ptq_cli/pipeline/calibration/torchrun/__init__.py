"""One calibration in several processes that ``torchrun`` started.

What may enter: which rank this is, and what ranks tell one another.
"""
