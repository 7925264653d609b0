"""Metrics of models that read or write tokens.

What may enter: metrics whose rows are sequences, [samples, positions], or embeddings of them.
"""
