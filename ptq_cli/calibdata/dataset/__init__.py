"""What every source of samples is: batches, labels, selections, files in shards.

What may enter: what all sources share, and no format.
"""
