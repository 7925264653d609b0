"""Shows on emulated processors that a quantized file computes the same integer sums everywhere.

The cases, and what runs them, are those of ``ptq verify --pack``; this sets processors up.
"""
