"""What ``calibrate`` needs: its statistics, their checkpoints, and shares of them put together.

What may enter: how a model is opened and run for its statistics, by one process or several, and
where they came from. ``collect`` and ``count_batches`` run the batches; ``ranks`` lets several processes
share them.
"""
