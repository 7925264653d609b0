"""Feature: ``ptq verify --rederive``: a quantized file made again from what its statement names.

What enters: the derivation, the comparison of files part by part, their document, options and lines.
"""
