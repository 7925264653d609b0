"""Memory for tapped tensors that is used again: fresh pages cost more than counting what is on them."""

import math
from collections.abc import Sequence

import numpy as np

from ptq_cli.core.tensors import Array

ALIGNMENT = 64
"""Bytes of a cache line."""

Kind = tuple[np.dtype[np.generic], tuple[int, ...]]
"""Dtype and shape of an array."""


class Arrays(list[Array]):
    """Arrays that share one piece of memory."""

    def __init__(self, arrays: Sequence[Array], memory: Array) -> None:
        super().__init__(arrays)
        self.memory = memory


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
        self._free: list[Array] = []

    def take(self, kinds: Sequence[Kind]) -> Arrays:
        """Return arrays whose values are undefined."""
        sizes = [math.prod(shape) * dtype.itemsize for dtype, shape in kinds]
        starts = [0]
        for size in sizes:
            starts.append(starts[-1] + -(-size // ALIGNMENT) * ALIGNMENT)
        memory = self._memory(starts[-1])
        parts = zip(kinds, starts, sizes, strict=False)
        arrays = [memory[at : at + size].view(dtype).reshape(shape) for (dtype, shape), at, size in parts]
        return Arrays(arrays, memory)

    def give(self, arrays: Sequence[Array]) -> None:
        """Take arrays back; nobody may read them from now on."""
        if isinstance(arrays, Arrays):
            self._free.append(arrays.memory)

    def _memory(self, size: int) -> Array:
        try:
            memory = self._free.pop()  # One operation, so that threads cannot take the same.
        except IndexError:
            return np.empty(size, np.uint8)
        return memory if memory.size >= size else np.empty(size, np.uint8)
