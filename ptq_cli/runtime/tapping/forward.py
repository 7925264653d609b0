"""What feeds the collectors: something that runs a batch and returns its tapped tensors."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ptq_cli.calibdata.dataset.batches import Batch, cut
from ptq_cli.core.errors import MemoryLimitError
from ptq_cli.core.tensors import Array
from ptq_cli.core.words import format_bytes

Tensor = Any
"""An array, or a tensor on the device that the model runs on; both have a ``shape``."""
Run = Callable[[Mapping[str, Array]], Sequence[Tensor]]


def whole(batch: Batch) -> Sequence[Batch]:
    """Return a batch as its only piece."""
    return (batch,)


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
    run: Run
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
    """

    passes: tuple[ForwardPass, ...]
    at_once: int = 1
    split: Callable[[Batch], Sequence[Batch]] = whole


# Batches are cut into pieces that take about so much memory, where a sample's tensors are its own.


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


# What fits below a limit of memory: how many samples a piece has, and how many tensors a pass.


SPARE = 1.1
"""Estimates are raised by a tenth: allocators round up."""


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What one sample and one session take, in bytes.

    Attributes:
        reached: the most that the process took so far: reading and turning a model may take more than running
            it.
        base: of the process now, before anything runs.
        fixed: besides, whatever the plan: statistics, and the batches that wait.
        session: of the model's weights, once for each session.
        scratch: of the tensors that a run makes for itself, for each sample.
        taps: each tapped tensor, for each sample.
    """

    reached: int
    base: int
    fixed: int
    session: int
    scratch: int
    taps: Mapping[str, int]


@dataclass(frozen=True)
class MemoryPlan:
    """How batches are run, below a limit.

    Attributes:
        samples: of a piece.
        at_once: runs that are under way at once.
        groups: the tapped tensors of each pass.
        peak: the estimate, in bytes.
    """

    samples: int
    at_once: int
    groups: tuple[tuple[str, ...], ...]
    peak: int

    def __str__(self) -> str:
        passes = "in one pass" if len(self.groups) == 1 else f"in {len(self.groups)} passes"
        runs = "one run at a time" if self.at_once < 2 else f"{self.at_once} runs at once"
        pieces = f"pieces of {self.samples} sample{'s' * (self.samples != 1)}"
        tensors = sum(len(group) for group in self.groups)
        return f"{tensors} tensors {passes}, {pieces}, {runs}: at most about {format_bytes(self.peak)}"


def plan_memory(
    needs: Needs, limit: int, *, most_samples: int, least_samples: int, at_once: int
) -> MemoryPlan:
    """Return the fastest plan below a limit: large pieces in one pass, or smaller ones, or several passes.

    Args:
        needs: what it takes.
        limit: in bytes.
        most_samples: of a piece.
        least_samples: of a piece; all of a batch's where it cannot be cut.
        at_once: most runs at once.

    Raises:
        MemoryLimitError: not even one tensor at a time fits; the message says what would.

    Example:
        >>> needs = Needs(reached=90, base=100, fixed=10, session=20, scratch=5, taps={"a": 30, "b": 30})
        >>> str(plan_memory(needs, 400, most_samples=8, least_samples=1, at_once=1))
        '2 tensors in one pass, pieces of 1 sample, one run at a time: at most about 270 bytes'
        >>> plan_memory(needs, 250, most_samples=8, least_samples=1, at_once=1).groups
        (('a',), ('b',))
    """
    if limit < needs.reached:
        raise MemoryLimitError(
            f"{format_bytes(limit)} of memory is not enough: {format_bytes(needs.reached)} were taken to "
            "open the model, before anything was run",
            hint=f"--set runtime.max_memory={-(-_least(needs, least_samples) // 2**20)}MiB",
        )
    whole = (tuple(needs.taps),)
    for runs in dict.fromkeys((at_once, min(at_once, 2), 1)):
        samples = most_samples
        while samples >= least_samples:
            peak = _peak(needs, whole, samples, runs)
            if peak <= limit:
                return MemoryPlan(samples, runs, whole, peak)
            if samples == least_samples:
                break
            samples = max(samples // 2, least_samples)
    for count in range(2, len(needs.taps) + 1):
        groups = _divide(needs.taps, count)
        peak = _peak(needs, groups, least_samples, 1)
        if peak <= limit:
            return MemoryPlan(least_samples, 1, groups, peak)
    least = _least(needs, least_samples)
    raise MemoryLimitError(
        f"{format_bytes(limit)} of memory is not enough: about {format_bytes(least)} are needed with one "
        f"tensor at a time, {format_bytes(needs.base)} of them before anything runs",
        hint=f"--set runtime.max_memory={-(-least // 2**20)}MiB",
    )


def require_host_memory(reached: int, more: int, limit: int) -> int:
    """Return the estimate of the host's peak where the tensors are on a device: nothing is left to plan.

    Args:
        reached: the most that the process took so far, with the device in use.
        more: what batches that wait and statistics will take besides.
        limit: in bytes.

    Raises:
        MemoryLimitError: the limit is lower; the message says what would do.

    Example:
        >>> require_host_memory(1000, 100, 2000)
        1110
    """
    peak = reached + int(SPARE * more)
    if peak > limit:
        raise MemoryLimitError(
            f"{format_bytes(limit)} of the host's memory is not enough: about {format_bytes(peak)} are "
            f"needed, {format_bytes(reached)} of them with the first samples on the device",
            hint=f"--set runtime.max_memory={-(-peak // 2**20)}MiB",
        )
    return peak


def _least(needs: Needs, samples: int) -> int:
    divided = (_divide(needs.taps, count) for count in range(1, len(needs.taps) + 1))
    return max(needs.reached, min(_peak(needs, groups, samples, 1) for groups in divided))


def _peak(needs: Needs, groups: tuple[tuple[str, ...], ...], samples: int, at_once: int) -> int:
    largest = max((sum(needs.taps[name] for name in group) for group in groups), default=0)
    # A first run has its tensors twice, to learn their shapes.
    tensors = 2 * at_once * samples * largest
    work = needs.fixed + len(groups) * needs.session + at_once * samples * needs.scratch + tensors
    return needs.base + int(SPARE * work)


def _divide(taps: Mapping[str, int], count: int) -> tuple[tuple[str, ...], ...]:
    """Return groups of nearly the same size, the largest tensors first into the emptiest group."""
    groups: list[list[str]] = [[] for _ in range(count)]
    sizes = [0] * count
    for name in sorted(taps, key=lambda name: -taps[name]):
        emptiest = sizes.index(min(sizes))
        groups[emptiest].append(name)
        sizes[emptiest] += taps[name]
    order = {name: place for place, name in enumerate(taps)}
    return tuple(tuple(sorted(group, key=order.__getitem__)) for group in groups)
