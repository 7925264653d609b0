"""What a layer reads at some of its output positions, and what it makes there, as rows of two matrices."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ptq_cli.core.compiled import compiled
from ptq_cli.core.tensors import Array
from ptq_cli.recover.layer_geometry import OUTSIDE, LayerGeometry, Window, spread
from ptq_cli.recover.second_moments import Int64s

AT_ONCE = 4096  # rows that are multiplied at once: enough for a product of matrices to be fast
CHECKED = 4  # every fourth sample that is learned from says how far the optimum of the others holds
NO_ROWS = "no data reached this part of the model"
NOT_FINITE = "what a layer reads or makes may not be NaN or Inf"

Part = tuple[Array, npt.NDArray[np.float32]]


class LayerRows:
    """Collects the rows of one layer, piece by piece."""

    def __init__(self, geometry: LayerGeometry, *, wanted: int, samples: int, outside: int = 0) -> None:
        """Take about ``wanted`` rows, evenly from all samples; the padding reads ``outside``."""
        self._geometry = geometry
        self._each = -(-wanted // max(samples, 1))
        self._outside = outside
        self._tables: dict[tuple[tuple[int, ...], tuple[int, ...]], Int64s] = {}
        self._pieces: dict[int, list[tuple[int, Part]]] = {}

    def add(self, piece: int, read: Array, made: Array, *, first: int) -> None:
        """Take the rows of a piece, which its number orders; threads may add pieces at the same time.

        ``first`` is the number of its first sample.

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

    def parts(self, chosen: Callable[[int], bool] = lambda _sample: True) -> Iterator[Part]:
        """Yield what was read and made of some samples, some thousand rows at a time, in the order of pieces.

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

    def release(self) -> None:
        """Release what was taken."""
        self._pieces = {}

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
    """Write what each output position reads into a row: (C, S) at (R, P) becomes (R, C * P)."""
    count, size = positions.shape
    for row in range(count):
        for channel in range(source.shape[0]):
            for k in range(size):
                position = positions[row, k]
                if position == OUTSIDE:
                    rows[row, channel * size + k] = outside
                else:
                    rows[row, channel * size + k] = source[channel, position]


@dataclass(frozen=True, kw_only=True)
class LayerData:
    """What a layer reads in the quantized model and makes in the float model.

    Attributes:
        learn: of the samples to learn from.
        decide: of those that are set aside.
    """

    learn: LayerRows
    decide: LayerRows

    def read(self) -> tuple[list[Part], list[Part], list[Part]] | str:
        """Take out the rows to learn from, to check by and to decide by; or why they are of no use."""
        learn = list(self.learn.parts(lambda sample: sample % CHECKED != CHECKED - 1))
        check = list(self.learn.parts(lambda sample: sample % CHECKED == CHECKED - 1))
        decide = list(self.decide.parts())
        for rows in (self.learn, self.decide):  # The parts are copies.
            rows.release()
        if not learn:
            learn, check = check, []
        if not learn:
            return NO_ROWS
        if not all(np.isfinite(array).all() for part in (*learn, *check, *decide) for array in part):
            return NOT_FINITE
        return learn, check, decide
