"""Batches, labels, selections, files in shards: the common part of all sources of samples.

What may enter: code that all sources share, but nothing of a single format.
"""
