"""``calibrate`` and what it leads to: its statistics, their checkpoints, and shares of them put together.

What may enter: how a model is opened and run for its statistics, by one process or several, and where they
came from. ``counting`` runs the batches; ``torchrun`` lets several processes share them.
"""
