"""Memory for tapped tensors that is used again: fresh pages cost more than counting what is on them."""

import math
from collections.abc import Sequence

import numpy as np

from ptq_cli.core.tensors import Array
from ptq_cli.runtime.sessions.session import OutputBinding

ALIGNMENT = 64
"""Bytes of a cache line."""

Kind = tuple[np.dtype[np.generic], tuple[int, ...]]
"""Dtype and shape of an array."""


class Arrays(list[Array]):
    """Arrays that share one piece of memory.

    Attributes:
        memory: as bytes.
        words: as the bits of float32.
        spans: where each array begins and ends there; None where it is not of float32.
        kinds: dtype and shape of each.
        binding: what binds them to the session that wrote into them last, or None.
    """

    def __init__(self, memory: Array, kinds: Sequence[Kind], starts: Sequence[int]) -> None:
        self.memory, self.kinds = memory, kinds
        self.words = memory.view(np.uint32)
        self.spans: list[tuple[int, int] | None] = []
        self.binding: OutputBinding | None = None
        for (dtype, shape), at in zip(kinds, starts, strict=True):
            size = math.prod(shape)
            part = memory[at : at + size * dtype.itemsize]
            self.append(part.view(dtype).reshape(shape))
            word = at // self.words.itemsize
            self.spans.append((word, word + size) if dtype == np.float32 else None)


class Buffers:
    """Hands out memory, and takes it back.

    Example:
        >>> buffers = Buffers()
        >>> arrays = buffers.take([(np.dtype(np.float32), (2, 3))])
        >>> buffers.give(arrays)
        >>> buffers.take([(np.dtype(np.float32), (3,))]).memory is arrays.memory
        True
    """

    def __init__(self) -> None:
        self._free: list[Arrays] = []

    def take(self, kinds: Sequence[Kind]) -> Arrays:
        """Return arrays whose values are undefined: those of an earlier call, if they were of these kinds."""
        try:
            free = self._free.pop()  # One operation, so that threads cannot take the same.
        except IndexError:
            free = None
        if free is not None and free.kinds is kinds:
            return free
        starts = [0]
        for dtype, shape in kinds:
            size = math.prod(shape) * dtype.itemsize
            starts.append(starts[-1] + -(-size // ALIGNMENT) * ALIGNMENT)
        size = starts.pop()
        enough = free is not None and free.memory.size >= size
        return Arrays(free.memory if free is not None and enough else np.empty(size, np.uint8), kinds, starts)

    def give(self, arrays: Sequence[Array]) -> None:
        """Take arrays back; nobody may read them from now on."""
        if isinstance(arrays, Arrays):
            self._free.append(arrays)
