"""Files become batches: npz, npy, image folders, Python callables. Streams; checks; never unpickles. No torch."""
