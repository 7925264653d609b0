"""Files become batches: arrays, images, tar shards, Parquet, callables. Streams; checks; never unpickles.

``dataset`` says what every source is; ``arrays``, ``images``, ``tar``, ``parquet`` and ``callables`` hold one
kind of source each. ``open_dataset`` tells them apart and opens one, ``bind`` matches arrays to the model's
inputs, ``finite`` looks for NaN and infinities, ``ahead`` decodes the next batches. No torch, no model and no
terminal may enter.
"""
