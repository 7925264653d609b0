"""Integers and scales of weights: decided once, in each layout that a graph can store.

What may enter: what is decided or computed of a weight's values, and how its integers are laid out.
"""
