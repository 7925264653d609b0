"""Batches are cut into pieces that take about so much memory, where a sample's tensors are its own."""

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ptq_cli.calibdata.dataset.batch import Batch
from ptq_cli.calibdata.dataset.rebatch import cut
from ptq_cli.core.tensors import Array

Signature = tuple[tuple[str, tuple[int, ...]], ...]
"""Name and shape of each input."""
PAIR_FACTOR = 4
"""How many times as large a piece may be that holds two samples, where not even one fits: with it BERT's
shape is calibrated a tenth faster."""
ENOUGH_SAMPLES = 16
"""Of so many, what a run costs whatever its size hardly shows: see ``benchmarks.pieces``."""


def signature(inputs: Mapping[str, Array]) -> Signature:
    """Return what the sizes of a run's tensors follow from.

    Example:
        >>> signature({"x": np.zeros((2, 3))})
        (('x', (2, 3)),)
    """
    return tuple((name, array.shape) for name, array in inputs.items())


class Cutter:
    """Cuts batches into pieces.

    Args:
        piece_bytes: how much those of a piece should take.
        samples: of a piece, where that is planned already.
        enough_bytes: how much those of a piece may take that has enough samples; see ``samples_of_piece``.

    Example:
        >>> batch = Batch({"x": np.zeros((5, 3))}, None, tuple("abcde"))
        >>> [piece.size for piece in Cutter(30).cut(batch, lambda _inputs: 10)]
        [2, 3]
    """

    def __init__(self, piece_bytes: int, samples: int | None = None, *, enough_bytes: int = 0) -> None:
        self._piece_bytes, self._enough_bytes = piece_bytes, enough_bytes
        self._samples = samples
        self._sizes: dict[Signature, int] = {}

    def cut(self, batch: Batch, sample_bytes: Callable[[Mapping[str, Array]], int]) -> Sequence[Batch]:
        """Return the pieces of a batch, of one size or nearly so.

        Args:
            batch: is cut.
            sample_bytes: returns how much memory the tapped tensors of one sample take; asked once for inputs
                of the same shapes. Not kept, so that a model that has a cutter goes with its last user.
        """
        if batch.size == 1:
            return (batch,)
        key = signature(batch.inputs)
        if key not in self._sizes:
            self._sizes[key] = self._samples or samples_of_piece(
                sample_bytes(cut(batch, 0, 1).inputs), self._piece_bytes, self._enough_bytes
            )
        number = -(-batch.size // self._sizes[key])
        bounds = [batch.size * part // number for part in range(number + 1)]
        return [cut(batch, *ends) for ends in itertools.pairwise(bounds)]


def samples_of_piece(sample_bytes: int, piece_bytes: int, enough_bytes: int = 0) -> int:
    """Return how many samples a piece has, at least one.

    Two samples may take more than a piece should: a layer reads its weights once for both. That is worth a
    larger piece, but not any.

    Args:
        sample_bytes: what one takes.
        piece_bytes: what a piece should take.
        enough_bytes: what a piece may take to have more samples, but no more than 16.

    Example:
        >>> samples_of_piece(3, 8), samples_of_piece(13, 8), samples_of_piece(66, 8)
        (2, 2, 1)
        >>> samples_of_piece(3, 8, 64), samples_of_piece(13, 8, 64), samples_of_piece(66, 8, 64)
        (16, 4, 1)
    """
    one = max(1, sample_bytes)
    pair = 2 if 2 * one <= PAIR_FACTOR * piece_bytes else 1
    return max(piece_bytes // one, min(ENOUGH_SAMPLES, enough_bytes // one)) or pair


def begins_with(both: Array, first: Array, times: int) -> bool:
    """Tell whether a tensor of some samples holds first what it is for the first one alone.

    Args:
        both: of some samples.
        first: of the first one.
        times: how many more they are.

    Example:
        >>> begins_with(np.array([[1.0], [2.0]]), np.array([[1.0]]), 2)
        True
    """
    if not first.ndim or both.shape[1:] != first.shape[1:]:
        return False
    if both.shape[0] != times * first.shape[0]:
        return _same(both, first)  # It does not depend on the samples at all.
    wanted, found = first.astype(np.float64), both[: first.shape[0]].astype(np.float64)
    largest = float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0))
    return bool(np.allclose(found, wanted, rtol=1e-3, atol=1e-4 * largest, equal_nan=True))


def _same(one: Array, other: Array) -> bool:
    return one.shape == other.shape and one.tobytes() == other.tobytes()
