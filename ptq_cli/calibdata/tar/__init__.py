"""WebDataset-style tar shards.

What may enter: what reads members of an archive forward; nothing is extracted.
"""
