"""How batches are run for the values of inner tensors: in pieces of a fast size, in memory used again."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ptq_cli.calibdata.dataset.batches import Batch, cut
from ptq_cli.core.errors import RuntimeFailedError
from ptq_cli.core.tensors import Array
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.runtime.session import OutputBinding, Session
from ptq_cli.runtime.tapping.channel_blocks import BlockedTaps, block_of, channel_view, open_tapped, unblock

Tensor = Any
"""An array, or a tensor on the device that the model runs on; both have a ``shape``."""
Run = Callable[[Mapping[str, Array]], Sequence[Tensor]]


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
    """Return what the sizes of a run's tensors follow from."""
    return tuple((name, array.shape) for name, array in inputs.items())


class Cutter:
    """Cuts batches into pieces.

    ``samples`` of a piece are given where they are planned already.
    """

    def __init__(self, piece_bytes: int, samples: int | None = None, *, enough_bytes: int = 0) -> None:
        self._piece_bytes, self._enough_bytes = piece_bytes, enough_bytes
        self._samples = samples
        self._sizes: dict[Signature, int] = {}

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
                sample_bytes(cut(batch, 0, 1).inputs), self._piece_bytes, self._enough_bytes
            )
        number = -(-batch.size // self._sizes[key])
        bounds = [batch.size * part // number for part in range(number + 1)]
        return [cut(batch, *ends) for ends in itertools.pairwise(bounds)]


def samples_of_piece(sample_bytes: int, piece_bytes: int, enough_bytes: int = 0) -> int:
    """Return how many samples a piece has, at least one.

    Two samples may take more than a piece should: a layer reads its weights once for both. That is worth a
    larger piece, but not any. ``enough_bytes`` is what a piece may take to have more samples, but no more
    than 16.

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

    The samples in ``both`` are so many ``times`` those in ``first``.

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


# Memory for tapped tensors that is used again: fresh pages cost more than counting what is on them.


ALIGNMENT = 64
"""Bytes of a cache line."""

Kind = tuple[np.dtype[np.generic], tuple[int, ...]]
"""Dtype and shape of an array."""


class Arrays(list[Array]):
    """Arrays that share one piece of memory.

    Attributes:
        words: as the bits of float32.
        spans: where each array begins and ends there; None where it is not of float32.
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
    """Hands out memory, and takes it back."""

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


PIECE_BYTES = 8 << 20
"""Tapped tensors of one run, which the caches hold until they are counted."""
ENOUGH_BYTES = 64 << 20
"""The same where fewer samples would make a run small: what it costs whatever its size shows more than what
it costs to read tensors that have left the caches."""
MOST_AT_ONCE = 8
MOST_WHOLE_AT_ONCE = 2
"""Where batches cannot be cut, their tensors take far more memory."""


class TappedModel:
    """Runs pieces of batches, in buffers that are used again.

    Before the first piece it is looked at what it may do: whether a sample's tensors depend on that sample
    alone, so that a batch may be cut; and whether tensors in blocks of channels hold the same values as those
    in order. Where not, it does not.
    """

    def __init__(
        self,
        model: bytes | StoredModel,
        taps: Sequence[str],
        *,
        threads: int,
        whole_batches: bool = False,
        sizes_vary: bool = False,
        piece_bytes: int = PIECE_BYTES,
        enough_bytes: int = 0,
        samples: int | None = None,
        at_once: int | None = None,
    ) -> None:
        """Open the model.

        Args:
            model: the tapped model, serialized.
            taps: names of its outputs.
            threads: that compute.
            whole_batches: batches are run as they are: the model fixes their size, or a branch or loop may
                look at all samples.
            sizes_vary: a tensor's size does not follow from those of the inputs, as of a branch.
            piece_bytes: how much the tapped tensors of a piece may take, if that is at least one sample.
            enough_bytes: how much they may take to have enough samples.
            samples: of a piece, where that is planned already; then as little memory is taken as can be.
            at_once: runs that are under way at once, where that is planned.
        """
        self._taps = tuple(taps)
        self._at_once = at_once or most_at_once(threads, whole_batches=whole_batches)
        # Each of the runs that are under way at once brings a thread of its own.
        workers = threads - self._at_once + 1
        self._blocked: BlockedTaps | None = None
        if samples is None:
            self._session, self._blocked = open_tapped(model, workers)
        else:
            self._session = Session(model, threads=workers, arena=False)
        self._unseen = samples is None
        self._whole = whole_batches
        self._cutter = Cutter(piece_bytes, samples, enough_bytes=enough_bytes)
        self._blocks: dict[str, int] = {}
        self._buffers = Buffers()
        self._kinds: dict[Signature, list[Kind]] = {}
        self._bindable = not sizes_vary

    def forward(self) -> Forward:
        """Return how batches are run."""
        return Forward((self.one_pass(),), self._at_once, self.split)

    def one_pass(self) -> ForwardPass:
        """Return the pass that gives the tapped tensors."""
        return ForwardPass(
            taps=self._taps,
            run=self.run,
            recycle=self._buffers.give,
            in_model_order=self.in_model_order,
            by_channels=self.by_channels,
        )

    def run(self, inputs: Mapping[str, Array]) -> Sequence[Array]:
        """Return the tapped tensors; several threads may call it at once."""
        kinds = self._kinds.get(signature(inputs))
        if kinds is None or not self._bindable:
            arrays = self._session.run(inputs)
            self._remember(inputs, arrays)
            return arrays
        taken = self._buffers.take(kinds)
        try:
            session = self._session
            if taken.binding is None or taken.binding.session is not session:
                taken.binding = session.bind_outputs(taken)
            session.run_bound(inputs, taken.binding)
        except RuntimeFailedError:
            # The shape of a tensor may depend on values; then ONNX Runtime has to make it.
            self._bindable = False
            return self._session.run(inputs)
        return taken

    def split(self, batch: Batch) -> Sequence[Batch]:
        """Cut a batch into the pieces that are run."""
        if self._unseen:
            self._unseen = False
            self._look_at(batch)
            self._blocked = None
        return (batch,) if self._whole else self._cutter.cut(batch, self._sample_bytes)

    def in_model_order(self, name: str, array: Array) -> Array:
        """Return a tapped tensor in the model's order."""
        return unblock(array, self._blocks[name]) if name in self._blocks else array

    def by_channels(self, name: str, array: Array) -> Array:
        """Return a tapped tensor as it lies in memory, with two axes for its channels if it is in blocks."""
        return channel_view(array, self._blocks[name]) if name in self._blocks else array

    def _look_at(self, batch: Batch) -> None:
        """Find out with the first samples what may be done, on two threads, as the others wait for it."""
        one, two = (batch if self._whole else cut(batch, 0, min(size, batch.size)) for size in (1, 2))
        candidate, moved = self._blocked or (self._session, [])
        try:
            with ThreadPoolExecutor(1) as pool:
                other = pool.submit(candidate.run, two.inputs)
                first = self._session.run(one.inputs)
                both = other.result()
        except RuntimeFailedError:
            # One sample alone is nothing for this model; if batches are neither, the first of them will tell.
            self._whole = True
            return
        self._remember(one.inputs, first)
        blocks = {index: block_of(both[index][: len(first[index])], first[index]) for index in moved}
        times = two.size // one.size
        apart = all(begins_with(both[i], first[i], times) for i in range(len(first)) if i not in blocks)
        if not all(blocks.values()):
            self._blocked = None
            self._look_at(batch)
        elif not apart:
            self._whole = True
        else:
            self._session = candidate
            self._blocks = {self._taps[index]: block for index, block in blocks.items() if block}

    def _sample_bytes(self, inputs: Mapping[str, Array]) -> int:
        kinds = self._kinds.get(signature(inputs)) or self._remember(inputs, self._session.run(inputs))
        return sum(math.prod(shape) * dtype.itemsize for dtype, shape in kinds)

    def _remember(self, inputs: Mapping[str, Array], arrays: Sequence[Array]) -> list[Kind]:
        kinds: list[Kind] = [(array.dtype, array.shape) for array in arrays]
        self._kinds[signature(inputs)] = kinds
        return kinds


def most_at_once(threads: int, *, whole_batches: bool) -> int:
    """Return how many pieces are run at once, each in a thread of its own.

    Example:
        >>> most_at_once(2, whole_batches=False), most_at_once(16, whole_batches=False)
        (2, 8)
    """
    return min(threads, MOST_WHOLE_AT_ONCE if whole_batches else MOST_AT_ONCE)
