"""A tapped model on the host: pieces of a fast size, in memory that is used again, in blocks of channels.

On x86-64 its convolutions compute with the channels in blocks (NCHWc). A tapped tensor would be brought
back into the model's order, one more read and write of each element, and its range and histogram do not
depend on the order. So the tap is moved to before the operator that reorders. Only whole blocks: what
fills up an incomplete one is not a value of the tensor.
"""

import math
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx

from ptq_cli.calibdata.dataset.batches import Batch, cut
from ptq_cli.core.errors import RuntimeFailedError
from ptq_cli.core.tensors import Array
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.runtime.session import NO_ARENA, OutputBinding, Session, Written
from ptq_cli.runtime.tapping.memory_plan import MemoryPlan
from ptq_cli.runtime.tapping.pieces import (
    Cutter,
    Forward,
    ForwardPass,
    PieceSize,
    Signature,
    begins_with,
    signature,
)

LARGEST_BLOCK = 16
_BLOCKS = (LARGEST_BLOCK, 8, 4)
_DOMAIN = "com.microsoft.nchwc"
BlockedTaps = tuple[Session, list[int]]  # and the indices of outputs in blocks


def open_tapped(model: bytes | StoredModel, threads: int) -> tuple[Session, BlockedTaps | None]:
    """Open a session on a tapped model, and if there are any tensors in blocks, one that leaves them so.

    Where ONNX Runtime's graph cannot be written or read again, there is no second session: what it could save
    is time alone. Nor is there one of a large model, whose weights each of them maps.
    """
    if isinstance(model, StoredModel) and model.is_apart:
        return Session(model, threads=threads), None
    content = model.message if isinstance(model, StoredModel) else model
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimized.onnx"
        try:
            session = Session(content, threads=threads, writes=Written(path))
            graph = onnx.load(path)
        except (RuntimeFailedError, OSError, ValueError):
            return Session(model, threads=threads), None
    moved = _move(graph.graph)
    if not moved:
        return session, None
    try:
        return session, (Session(graph.SerializeToString(), threads=threads, optimize=False), moved)
    except (RuntimeFailedError, ValueError):
        return session, None


def _move(graph: onnx.GraphProto) -> list[int]:
    reorders = {node.output[0]: node for node in graph.node if _reorders_whole_blocks(node)}
    moved = [index for index, output in enumerate(graph.output) if output.name in reorders]
    before = [reorders[graph.output[index].name].input[0] for index in moved]
    if len(set(before)) < len(before):  # Two names of one tensor: an output has but one.
        return []
    gone = set()
    for index, name in zip(moved, before, strict=True):
        gone.add(graph.output[index].name)
        graph.output[index].name = name
        graph.output[index].type.tensor_type.ClearField("shape")
    read = {name for node in graph.node for name in node.input}
    kept = [node for node in graph.node if not (node.output[0] in gone and node.output[0] not in read)]
    del graph.node[:]
    graph.node.extend(kept)
    return moved


def _reorders_whole_blocks(node: onnx.NodeProto) -> bool:
    if node.op_type != "ReorderOutput" or node.domain != _DOMAIN:
        return False
    attributes = {attribute.name: attribute.i for attribute in node.attribute}
    return not attributes.get("channels_last", 0) and attributes.get("channels", 1) % LARGEST_BLOCK == 0


def block_of(blocked: Array, plain: Array) -> int | None:
    """Return how many channels a block has, given a tensor in blocks and in order; None if it has none.

    Shapes: blocked, plain: (N, C, H, W), of which the first is so only by name.
    """
    if blocked.shape != plain.shape or blocked.ndim != 4:
        return None
    return next((block for block in _BLOCKS if _same(unblock(blocked, block), plain)), None)


def unblock(blocked: Array, block: int) -> Array:
    """Return a tensor in the model's order.

    Shapes: blocked, result: (N, C, H, W).
    """
    return channel_view(blocked, block).reshape(blocked.shape)


def channel_view(blocked: Array, block: int) -> Array:
    """Return a view of a tensor with two axes of channels: those of blocks, and those in a block.

    Shapes: blocked: (N, C, H, W); the result (N, C / block, block, H, W).
    """
    samples, channels, height, width = blocked.shape
    return blocked.reshape(samples, channels // block, height, width, block).transpose(0, 1, 4, 2, 3)


def _same(one: Array, other: Array) -> bool:
    return bool(np.array_equal(one.view(np.uint32), np.ascontiguousarray(other).view(np.uint32)))


_ALIGNMENT = 64  # bytes of a cache line
_Kind = tuple[np.dtype[np.generic], tuple[int, ...]]  # dtype and shape of an array


class TappedArrays(list[Array]):
    """Arrays that share one piece of memory.

    Attributes:
        words: as the bits of float32.
        spans: where each array begins and ends there; None where it is not of float32.
        binding: what binds them to the session that wrote into them last, or None.
    """

    def __init__(self, memory: Array, kinds: Sequence[_Kind], starts: Sequence[int]) -> None:
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
        self._free: list[TappedArrays] = []

    def take(self, kinds: Sequence[_Kind]) -> TappedArrays:
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
            starts.append(starts[-1] + -(-size // _ALIGNMENT) * _ALIGNMENT)
        size = starts.pop()
        enough = free is not None and free.memory.size >= size
        return TappedArrays(
            free.memory if free is not None and enough else np.empty(size, np.uint8), kinds, starts
        )

    def give(self, arrays: Sequence[Array]) -> None:
        """Take arrays back; nobody may read them from now on."""
        if isinstance(arrays, TappedArrays):
            self._free.append(arrays)


FAST = PieceSize(8 << 20)  # bytes that the caches hold until they are counted
ENOUGH_BYTES = 64 << 20  # where fewer samples would not pay for a run's fixed cost
MOST_AT_ONCE = 8
MOST_WHOLE_AT_ONCE = 2  # whole batches take far more memory


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
        size: PieceSize = FAST,
        sizes_vary: bool = False,
        plan: MemoryPlan | None = None,
    ) -> None:
        """Open the model.

        Args:
            model: the tapped model, serialized.
            taps: names of its outputs.
            threads: that compute.
            size: of the pieces that a batch is cut into.
            sizes_vary: a tensor's size does not follow from those of the inputs, as of a branch.
            plan: samples of a piece and runs under way at once; then as little memory is taken as can be.
        """
        self._taps = tuple(taps)
        self._at_once = plan.at_once if plan else most_at_once(threads, whole_batches=size.whole)
        # Each of the runs that are under way at once brings a thread of its own.
        workers = threads - self._at_once + 1
        self._blocked: BlockedTaps | None = None
        if plan is None:
            self._session, self._blocked = open_tapped(model, workers)
        else:
            self._session = Session(model, threads=workers, place=NO_ARENA)
        self._unseen, self._whole = plan is None, size.whole
        self._cutter = Cutter(size, plan.samples if plan else None)
        self._blocks: dict[str, int] = {}
        self._buffers = Buffers()
        self._kinds: dict[Signature, list[_Kind]] = {}
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

    def _remember(self, inputs: Mapping[str, Array], arrays: Sequence[Array]) -> list[_Kind]:
        kinds: list[_Kind] = [(array.dtype, array.shape) for array in arrays]
        self._kinds[signature(inputs)] = kinds
        return kinds


def most_at_once(threads: int, *, whole_batches: bool) -> int:
    """Return how many pieces are run at once, each in a thread of its own.

    Example:
        >>> most_at_once(2, whole_batches=False), most_at_once(16, whole_batches=False)
        (2, 8)
    """
    return min(threads, MOST_WHOLE_AT_ONCE if whole_batches else MOST_AT_ONCE)
