"""``evaluate`` and what it writes: the models over the data, the reports, the page and the gate.

What may enter: whatever judges a quantized model on data, or reads such a judgement again. The verbs are
here; ``measuring`` runs the models, ``parts`` shares that out, and ``written`` makes the files.
"""
