"""Channels of a graph that may be multiplied where they are made and divided where they are read.

``scale_rules`` says which they are and which must share a factor; ``scale_spaces`` gives them factors. The
model computes the same. Nothing here knows which factors are good.
"""
