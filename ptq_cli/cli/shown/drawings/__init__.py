"""Drawings made of characters.

What may enter: from numbers to lines of text.
"""
