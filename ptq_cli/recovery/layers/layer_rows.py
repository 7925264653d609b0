"""What a layer reads at some of its output positions, and what it makes there, as rows of two matrices."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ptq_cli.collectors.kernels.compiled import compiled
from ptq_cli.core.tensors import Array
from ptq_cli.recovery.layers.layer_geometry import OUTSIDE, LayerGeometry, Window, spread
from ptq_cli.recovery.search.second_moments import Int64s

AT_ONCE = 4096
"""Rows that are multiplied at once: enough for a product of matrices to be fast."""

Part = tuple[Array, npt.NDArray[np.float32]]
Chosen = Callable[[int], bool]
"""Tells by its number whether a sample is meant."""


def every(sample: int) -> bool:
    """Mean every sample."""
    del sample
    return True


class LayerRows:
    """Collects the rows of one layer, piece by piece.

    Example:
        >>> none = np.zeros(2, np.int64)
        >>> plain = LayerGeometry(groups=1, window=None, transposed=True, blocks=1, block=none)
        >>> rows = LayerRows(plain, wanted=4, samples=2, outside=0)
        >>> rows.add(0, np.array([[1, 2], [3, 4]], np.uint8), np.ones((2, 3), np.float32), first=0)
        >>> [(read.tolist(), made.shape) for read, made in rows.parts()]
        [([[1, 2], [3, 4]], (2, 3))]
    """

    def __init__(self, geometry: LayerGeometry, *, wanted: int, samples: int, outside: int) -> None:
        """Say which rows are wanted.

        Args:
            geometry: of the layer.
            wanted: how many rows there should be, evenly from all samples.
            samples: how many there will be.
            outside: what a convolution reads in its padding: the zero point.
        """
        self._geometry = geometry
        self._each = -(-wanted // max(samples, 1))
        self._outside = outside
        self._tables: dict[tuple[tuple[int, ...], tuple[int, ...]], Int64s] = {}
        self._pieces: dict[int, list[tuple[int, Part]]] = {}

    def add(self, piece: int, read: Array, made: Array, *, first: int) -> None:
        """Take the rows of a piece; several threads may call it, each for its own pieces.

        Args:
            piece: its number, which orders the rows.
            read: what the layer reads, its samples along the first axis.
            made: what it makes in the float model.
            first: the number of the first sample.

        Shapes:
            read: (samples, C, …) of a convolution, otherwise (samples, …, K); made: alike, with M for C or K.
        """
        rows = self._matrix_rows if self._geometry.window is None else self._window_rows
        if read.ndim == 1:  # A MatMul may read a vector, which is one row.
            read, made = read[None], made[None]
        self._pieces[piece] = [
            (first + sample, rows(np.ascontiguousarray(read[sample]), made[sample], first + sample))
            for sample in range(len(read))
        ]

    def parts(self, chosen: Chosen = every) -> Iterator[Part]:
        """Yield what was read and what was made, some thousand rows at a time, in the order of the pieces.

        Args:
            chosen: of which samples.

        Shapes:
            (rows, groups * K), (rows, M).
        """
        waiting: list[Part] = []
        for piece in sorted(self._pieces):
            waiting += [part for sample, part in self._pieces[piece] if chosen(sample)]
            if sum(len(read) for read, _ in waiting) >= AT_ONCE:
                yield _joined(waiting)
                waiting = []
        if any(len(read) for read, _ in waiting):
            yield _joined(waiting)

    def _matrix_rows(self, read: Array, made: Array, sample: int) -> Part:
        read, made = read.reshape(-1, read.shape[-1]), made.reshape(-1, made.shape[-1])
        chosen = spread(len(read), self._each, sample)
        return read[chosen], made[chosen].astype(np.float32)

    def _window_rows(self, read: Array, made: Array, sample: int) -> Part:
        window = self._geometry.window
        assert window is not None  # noqa: S101 - the caller has asked
        chosen = spread(int(np.prod(made.shape[1:])), self._each, sample)
        positions = self._positions(window, read.shape[1:], made.shape[1:])[chosen]
        rows = np.empty((len(chosen), len(read) * positions.shape[1]), read.dtype)
        gather(read.reshape(len(read), -1), positions, read.dtype.type(self._outside), rows)
        return rows, made.reshape(len(made), -1)[:, chosen].T.astype(np.float32)

    def _positions(self, window: Window, taken: Sequence[int], given: Sequence[int]) -> Int64s:
        key = (tuple(taken), tuple(given))
        if key not in self._tables:
            self._tables[key] = window.positions(*key)
        return self._tables[key]


def _joined(parts: Sequence[Part]) -> Part:
    return np.concatenate([read for read, _ in parts]), np.concatenate([made for _, made in parts])


@compiled
def gather(
    source: Array, positions: Int64s, outside: float, rows: Array
) -> None:  # pragma: no cover - compiled
    """Write what each output position reads into a row.

    Shapes:
        source: (C, S); positions: (R, P); rows: (R, C * P).
    """
    count, size = positions.shape
    for row in range(count):
        for channel in range(source.shape[0]):
            for k in range(size):
                position = positions[row, k]
                if position == OUTSIDE:
                    rows[row, channel * size + k] = outside
                else:
                    rows[row, channel * size + k] = source[channel, position]
