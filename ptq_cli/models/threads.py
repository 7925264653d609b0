"""PyTorch works on one thread while it is asked for a graph, or for the outputs of an example."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Let PyTorch compute on this thread alone inside the block, whatever it was set to.

    Its threads spin while they wait for one another. Where another process takes a core away from one of
    them, the others keep theirs busy with waiting, for each operator; two samples are not worth sharing.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
