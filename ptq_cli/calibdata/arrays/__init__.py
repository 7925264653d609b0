"""``.npy`` and ``.npz`` files, checked as untrusted input and read a few rows at a time.

What may enter: what reads arrays from files; nothing is unpickled.
"""
