"""Files become batches: npz, npy, image folders, Python callables. Streams; checks; never unpickles.

What is opened here is a ``Dataset``; no torch, no model and no terminal may enter.
"""
