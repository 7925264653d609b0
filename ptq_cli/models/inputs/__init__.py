"""What a graph says of its inputs: axes of samples, fixed values, indices of tables, caches of tokens.

What may enter: what can be known of an input without data.
"""
