"""Operators written as others that compute the same: in integers, or faster on a target.

What may enter: another form of an operator, or of a layer's channels; its parameters are decided elsewhere.
"""
