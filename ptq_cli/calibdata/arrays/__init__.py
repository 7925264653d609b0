"""``.npy`` and ``.npz`` files, read with suspicion and a few rows at a time.

What may enter: what reads arrays from files; nothing is unpickled.
"""
