"""Forward passes over pieces of batches, cut by memory; on a device, tensors are read where they are."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ptq_cli.calibdata.dataset.batches import Batch, cut
from ptq_cli.core.tensors import Array

Tensor = Any  # an array, or a tensor on the model's device; both have a ``shape``
RunTapped = Callable[[Mapping[str, Array]], Sequence[Tensor]]


def whole(batch: Batch) -> Sequence[Batch]:
    """Return a batch as its only piece."""
    return (batch,)


def nothing(inputs: Mapping[str, Array]) -> Sequence[Tensor]:
    """Return no tensors."""
    del inputs
    return ()


def forget(arrays: Sequence[Tensor]) -> None:
    """Do nothing with arrays that are done with."""
    del arrays


def as_it_is(name: str, array: Array) -> Array:
    """Return an array as it is."""
    del name
    return array


@dataclass(frozen=True, kw_only=True)
class ForwardPass:
    """A run of the model that gives some of the tapped tensors.

    Attributes:
        taps: their names.
        run: returns them for a batch; from several threads at once where ``Forward.at_once`` is above 1.
        recycle: takes arrays that ``run`` returned, once they are counted; their memory is used again.
        in_model_order: a tapped tensor, as ``run`` returned it, on the host in the model's shape and order.
        by_channels: the same without a copy, for whom two axes of channels are as good as one.
    """

    taps: tuple[str, ...]
    run: RunTapped
    recycle: Callable[[Sequence[Tensor]], None] = forget
    in_model_order: Callable[[str, Tensor], Array] = as_it_is
    by_channels: Callable[[str, Tensor], Array] = as_it_is


@dataclass(frozen=True)
class Forward:
    """How batches are run.

    Attributes:
        passes: each piece takes all of them, one after the other; together they give all tapped tensors.
        at_once: how many threads run pieces, each of which also counts what it ran.
        split: cuts a batch into the pieces that are run.
        smaller: cuts a piece for whose run there was not enough memory; one that cannot be cut comes back.
    """

    passes: tuple[ForwardPass, ...]
    at_once: int = 1
    split: Callable[[Batch], Sequence[Batch]] = whole
    smaller: Callable[[Batch], Sequence[Batch]] = whole


Signature = tuple[tuple[str, tuple[int, ...]], ...]  # name and shape of each input
PAIR_FACTOR = 4  # of a piece's bytes, for two samples: calibrates BERT a tenth faster
ENOUGH_SAMPLES = 16  # at which a run's fixed cost hardly shows: ``benchmarks.pieces``


def signature(inputs: Mapping[str, Array]) -> Signature:
    """Names and shapes of inputs, which the sizes of a run's tensors follow from."""
    return tuple((name, array.shape) for name, array in inputs.items())


@dataclass(frozen=True)
class PieceSize:
    """How much the tapped tensors of a piece may take, if that is at least one sample.

    Attributes:
        most_bytes: of tapped tensors.
        enough_bytes: of a piece that has few samples.
        whole: batches are run as they are: the model fixes their size, or a branch or loop may look at all
            samples.
    """

    most_bytes: int
    enough_bytes: int = 0
    whole: bool = False


class Cutter:
    """Cuts batches into pieces, of so many ``samples`` where these are planned already."""

    def __init__(self, size: PieceSize, samples: int | None = None) -> None:
        self._size, self._samples = size, samples
        self._sizes: dict[Signature, int] = {}
        self._most: int | None = None

    def cut(self, batch: Batch, sample_bytes: Callable[[Mapping[str, Array]], int]) -> Sequence[Batch]:
        """Return the pieces of a batch, of one size or nearly so.

        ``sample_bytes`` returns how much the tapped tensors of one sample take; it is asked once for inputs
        of the same shapes, and not kept, so that a model that has a cutter goes with its last user.
        """
        if batch.size == 1:
            return (batch,)
        key = signature(batch.inputs)
        if key not in self._sizes:
            self._sizes[key] = self._samples or samples_of_piece(
                sample_bytes(cut(batch, 0, 1).inputs), self._size
            )
        samples = self._sizes[key]
        return _even_parts(batch, samples if self._most is None else min(samples, self._most))

    def halve(self, piece: Batch) -> Sequence[Batch]:
        """Return the halves of a piece that was too large; later pieces are no larger than these."""
        half = max(1, piece.size // 2)
        self._most = half if self._most is None else min(half, self._most)
        return _even_parts(piece, half)


def _even_parts(batch: Batch, samples: int) -> Sequence[Batch]:
    number = -(-batch.size // samples)
    bounds = [batch.size * part // number for part in range(number + 1)]
    return [cut(batch, *ends) for ends in itertools.pairwise(bounds)]


def samples_of_piece(sample_bytes: int, size: PieceSize) -> int:
    """Return how many samples a piece has, at least one.

    Two samples may take more than a piece should: a layer reads its weights once for both. That is worth a
    larger piece, but not any. With ``enough_bytes`` a piece has no more than 16 samples.

    Example:
        >>> [samples_of_piece(size, PieceSize(8)) for size in (3, 13, 66)]
        [2, 2, 1]
        >>> [samples_of_piece(size, PieceSize(8, 64)) for size in (3, 13, 66)]
        [16, 4, 1]
    """
    one = max(1, sample_bytes)
    pair = 2 if 2 * one <= PAIR_FACTOR * size.most_bytes else 1
    return max(size.most_bytes // one, min(ENOUGH_SAMPLES, size.enough_bytes // one)) or pair


def begins_with(both: Array, first: Array, times: int) -> bool:
    """Tell whether a tensor of some samples begins with that of the first one alone.

    The samples in ``both`` are so many ``times`` those in ``first``.

    Example:
        >>> begins_with(np.array([[1.0], [2.0]]), np.array([[1.0]]), 2)
        True
    """
    if not first.ndim or both.shape[1:] != first.shape[1:]:
        return False
    if both.shape[0] != times * first.shape[0]:
        # Equal, if it does not depend on the samples at all.
        return both.shape == first.shape and both.tobytes() == first.tobytes()
    wanted, found = first.astype(np.float64), both[: first.shape[0]].astype(np.float64)
    largest = float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0))
    return bool(np.allclose(found, wanted, rtol=1e-3, atol=1e-4 * largest, equal_nan=True))
