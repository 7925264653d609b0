"""What all sources of samples have in common: batches, labels, selections, files in shards.

What may enter: code that all sources share, but nothing of a single format.
"""
