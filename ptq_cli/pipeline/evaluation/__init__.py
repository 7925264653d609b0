"""``evaluate`` and what it writes: the models over the data, the reports, the page and the gate.

What may enter: whatever judges a quantized model on data, or reads such a judgement again. The verbs are
here; ``evaluation_shard`` and ``joined_shards`` share the work out, ``made_reports`` and ``page_evidence``
make the files. ``measuring`` runs the models.
"""
