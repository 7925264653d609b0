"""Files become batches: arrays, images, tar shards, Parquet and callables. Nothing is unpickled.

``dataset`` is the interface of every source; ``arrays``, ``images``, ``tar``, ``parquet`` and ``callables``
hold one kind of source each. ``open_dataset`` detects the kind and opens it, ``bind`` matches arrays with the
model's inputs, ``finite`` looks for NaN and infinities, ``ahead`` decodes the next batches. No torch, no
model and no terminal may be used here.
"""
