"""Texts that a tokenizer turns into the inputs of a language model or an encoder.

What may enter: readers of text files and columns, and what makes arrays of tokens.
"""
