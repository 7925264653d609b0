"""Files become batches: arrays, images, tar shards, Parquet and callables. Nothing is unpickled.

``dataset`` has batches and the interface of every source; the other files hold one kind each.
``open_dataset`` detects the kind and opens it, ``bind`` matches arrays with the model's inputs. No torch, no
model and no terminal may be used here.
"""
