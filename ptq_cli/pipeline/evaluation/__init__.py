"""What ``evaluate``, ``analyze`` and ``bench`` need: the models over the data, the reports, the page.

What may enter: whatever measures a quantized model on data, or reads such a measurement again. ``one_pass``
runs the models, ``evaluation_shard`` and ``joined_shards`` share the work out, ``made_reports`` and
``page_evidence`` make the files.
"""
