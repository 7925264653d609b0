"""The files of an evaluation: reports, the page, and what they show of the models and the calibration.

What may enter: what turns measurements into files. Not what is measured (``measuring``).
"""
