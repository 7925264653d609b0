"""WebDataset-style tar shards.

What may enter: code that reads the members of an archive forward; nothing is extracted.
"""
