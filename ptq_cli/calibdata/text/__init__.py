"""Text files, JSON lines and columns of text through a tokenizer.

What may enter: how texts are found, cut into tokens and laid out as arrays.
"""
