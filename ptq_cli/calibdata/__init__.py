"""Files become batches: arrays, images, tar shards, Parquet and callables. Nothing is unpickled.

``dataset`` is the interface of every source; the other files and ``tar`` hold one kind of source each.
``open_dataset`` detects the kind and opens it, ``bind`` matches arrays with the model's inputs, ``ahead``
decodes the next batches and looks for NaN and infinities. No torch, no model and no terminal may be used
here.
"""
