"""Inner tensors of a model become visible, batch by batch, within a limit of memory.

``taps`` makes outputs of them; ``tapped`` and ``on_device`` run the batches. What may enter: how tensors get
out of a running model; no look at their values.
"""
