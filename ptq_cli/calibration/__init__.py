"""What ``calibrate`` needs: the model with its data, the statistics, and where they came from.

What may enter: how a model is opened and run for its statistics, and what a run remembers of it. ``subject``
opens, ``measure`` runs one part, ``collect`` and ``count_batches`` its batches; ``provenance`` reads a run.
"""
