"""A model as its files hold it: one protobuf, or a graph with a file of its large constants beside it.

What may enter: what bytes need on their way from a graph to a file and back, and what they could do.
"""
