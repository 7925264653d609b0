"""What every metric looks like, how samples are walked whatever the batches; checks of users' code."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt

from ptq_cli.core.errors import MetricError, first_line
from ptq_cli.core.tensors import Array, format_shape
from ptq_cli.evaluation.bootstrap import Float64Array, OfSums
from ptq_cli.evaluation.document.measurement import Unit

Rows = npt.NDArray[Any]  # One for each sample, or for each pair of samples
State = dict[str, Rows]  # Arrays by name, from which a metric goes on: what a checkpoint holds of it


def below(state: State, prefix: str) -> State:
    """Return what a state holds under the keys that begin so, without that beginning."""
    return {key.removeprefix(prefix): array for key, array in state.items() if key.startswith(prefix)}


Labels = npt.NDArray[Any]

# What the labels must be: class indices [N] of scores [N, classes], numbers of the output's own shape, class
# indices [N, ...] of scores [N, classes, ...], one number for each two samples, or whatever the metric
# takes. Of scores [N, T, tokens]: the token after each position, the right token of some positions, or the
# token that the float model chooses; of embeddings those of the float model, or one number for each pair.
Targets = Literal[
    "classes",
    "values",
    "masks",
    "any",
    "tokens",
    "marked tokens",
    "float tokens",
    "float embeddings",
    "pairs",
]

# Targets that the float model gives, so that the metric has one value.
COMPARED = ("float tokens", "float embeddings")

BLOCK_VALUES = 2**17  # Elements that are converted to float64 at a time: 1 MiB, which caches hold


@dataclass(frozen=True)
class SampleSums:
    """A metric as a function of sums over samples, from which its uncertainty can be told.

    This is what grows with the evaluation set: a byte for each sample and share, 8 for a cosine, 16 for an
    SQNR; 50,000 samples of a classifier take 2 MB.

    Attributes:
        rows: [N, k], what each sample adds to the sums, in the order of the set.
        of_sums: the metric's value from such sums.
        blocks: whether a row is of a block of samples, not of one.
        flipped: the value, had as many more samples been wrong as may be without one seen
            (``unseen_flips``); None if only the samples tell what one adds.
    """

    rows: Float64Array
    of_sums: OfSums
    blocks: bool = False
    flipped: float | None = None


@dataclass(frozen=True)
class Reweighed:
    """A metric as a function of how often each sample counts.

    Attributes:
        units: how many samples, or pairs of them, there are.
        of_weights: the value, from [units] counts.
        cost: elements that one evaluation reads, which limits how many there can be.
        flipped: as of ``SampleSums``.
        rows: [units, k], what tells whether a unit changed; None if a change may move nothing.
    """

    units: int
    of_weights: Callable[[Float64Array], float]
    cost: int
    flipped: float | None = None
    rows: Rows | None = field(default=None, kw_only=True)


Resampling = SampleSums | Reweighed | str  # How the uncertainty is told; a text says why it cannot be


class StreamingMetric(Protocol):
    """What every metric does with what each sample added."""

    def compute(self) -> float:
        """The value over all samples so far."""

    def resampling(self) -> Resampling:
        """How the uncertainty is told."""

    def state(self) -> State:
        """What a checkpoint holds."""

    def start_at(self, sample: int) -> None:
        """Take the first sample that comes for this one of the set: others have those before."""

    def join(self, states: Sequence[State]) -> None:
        """Go on from the states of metrics that have seen a part each, in the order of the set.

        A checkpoint is the state of the only part.
        """


class LabelMetric(StreamingMetric, Protocol):
    """Compares one model's output with labels."""

    @property
    def unit(self) -> Unit:
        """Of the value."""

    @property
    def higher_is_better(self) -> bool:
        """False for an error."""

    @property
    def targets(self) -> Targets:
        """What the labels must be."""

    def update(self, output: Array, labels: Labels) -> None:
        """Count one batch: the first axis of both is the sample."""


class PairMetric(StreamingMetric, Protocol):
    """Compares the quantized model's output with the float model's; needs no labels."""

    unit: ClassVar[Unit]
    higher_is_better: ClassVar[bool]

    @staticmethod
    def accepts(output: Array, samples: int) -> bool:
        """Whether the metric has a meaning for this output of a batch of ``samples``."""

    def update(self, float_output: Array, quantized_output: Array) -> None:
        """Count one batch; both arrays have one shape."""


class Recorded:
    """A metric whose state is its rows; its value is their mean, or what ``of_sums`` makes of their sums."""

    name: str

    def __init__(self) -> None:
        self._parts: list[Rows] = []
        self.count = 0

    def _add(self, rows: Rows) -> None:
        """Append rows of a batch, which are not copied: they must be nobody else's."""
        self._parts.append(rows)
        self.count += len(rows)

    @property
    def rows(self) -> Rows:
        """All rows so far; an empty array before the first."""
        if not self._parts:
            return np.empty((0, 0))
        # Joined when they are read, and then kept: joining at each batch would be quadratic.
        if len(self._parts) > 1:
            self._parts = [np.concatenate(self._parts)]
        return self._parts[0]

    def counted_rows(self) -> Rows:
        """Return all rows, after making sure that there are some."""
        if not self.count:
            raise MetricError(f"{self.name} has seen no sample", hint="evaluate on data that has samples")
        return self.rows

    def compute(self) -> float:
        """The value over all samples so far."""
        return float(self.of_sums(self.counted_rows().sum(axis=0)))

    def resampling(self) -> Resampling:
        """What each sample added, of whose sums the value is made."""
        return SampleSums(self.rows.astype(np.float64, copy=False), self.of_sums)

    def of_sums(self, sums: Float64Array) -> Float64Array:
        """Return the value from sums of rows, [..., k]."""
        mean: Float64Array = sums[..., 0] / self.count
        return mean

    def state(self) -> State:
        """Return what a checkpoint holds."""
        return {"rows": self.rows}

    def start_at(self, sample: int) -> None:
        """Take the first sample that comes for this one of the set, which changes no row."""

    def join(self, states: Sequence[State]) -> None:
        """Go on from what was recorded of all parts of a set, in their order."""
        self._parts = [state["rows"] for state in states if len(state["rows"])]
        self.count = sum(map(len, self._parts))


def paired_rows(float_output: Array, quantized_output: Array) -> Iterator[tuple[Float64Array, Float64Array]]:
    """Yield both outputs as rows in float64, a sample each, a few samples at a time.

    Not all of a batch at once: a float64 copy of segmentation maps would double its memory. What is summed
    along a row does not depend on how the samples were batched, to the last bit.

    Shapes: float_output, quantized_output: [N, ...]; each yielded array is [n, elements of a sample].
    Edge case: A scalar output is one sample. Nothing is yielded for an output without samples.

    Example:
        >>> [f.tolist() for f, _ in paired_rows(np.ones((2, 1, 2)), np.zeros((2, 1, 2)))]
        [[[1.0, 1.0], [1.0, 1.0]]]
    """
    flat = [np.atleast_1d(output) for output in (float_output, quantized_output)]
    first, second = (output.reshape(len(output), -1 if output.size else 0) for output in flat)
    # A batch of images as float64 would double the memory of an evaluation.
    together = max(1, BLOCK_VALUES // max(1, first.shape[1]))
    for start in range(0, len(first), together):
        part = slice(start, start + together)
        yield first[part].astype(np.float64), second[part].astype(np.float64)


class BlockSums:
    """Sums of rows over blocks of samples, of which there are at most ``most``.

    A block is 2ᴸ samples, for the smallest L with which there are no more blocks. Its sum is that of its two
    halves, and so on down to single samples: the order in which numbers are added is given by the places of
    the samples in the set alone. What several processes have summed is therefore the same to the last bit.

    Args:
        most: blocks, at least 1.

    Shapes: a row is [2, channels]; rows may differ in the number of channels, and missing ones count as 0.
    Units: the rows' own.
    Edge case: Without a sample there is no block.

    Source: Higham 2002, "Accuracy and stability of numerical algorithms", section 4.2 (pairwise summation).

    Example:
        >>> sums = BlockSums(most=2)
        >>> sums.add(np.arange(10.0).reshape(5, 2, 1))
        >>> sums.blocks().ravel().tolist(), sums.samples_per_block
        ([12.0, 16.0, 8.0, 9.0], 4)
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._next = 0
        self._level = 0
        self._nodes: dict[tuple[int, int], Float64Array] = {}
        """Sums of 2ˡ samples by l and the number of the block of that size; halves of a block are joined."""

    def __len__(self) -> int:
        """How many samples the set has, as far as is known."""
        return self._next

    @property
    def samples_per_block(self) -> int:
        """How many samples are in a block; fewer in the last one."""
        return 1 << self._level

    def start_at(self, sample: int) -> None:
        """Take the next row for that of this sample: those before are summed elsewhere."""
        self._next = sample

    def add(self, rows: Float64Array) -> None:
        """Add the rows of the next samples.

        Shapes: rows [n, 2, channels].
        """
        first, level = self._next, 0
        self._reach(first + len(rows))
        # Pairs of neighbors are added level by level, as in a binary tree over the samples' numbers: each
        # sum has the same order of additions whatever the batches, and so the same bits.
        while level < self._level and len(rows):
            if first % 2:
                self._put(level, first, rows[0].copy())
                first, rows = first + 1, rows[1:]
            if len(rows) % 2:
                self._put(level, first + len(rows) - 1, rows[-1].copy())
                rows = rows[:-1]
            first, level, rows = first // 2, level + 1, rows[0::2] + rows[1::2]
        for offset, row in enumerate(rows):
            self._put(level, first + offset, row)

    def blocks(self) -> Float64Array:
        """Return the sum of each block.

        Shapes: [blocks, 2, channels], with the most channels that a row had.
        """
        count = -(-self._next // self.samples_per_block)
        width = max((node.shape[1] for node in self._nodes.values()), default=0)
        found = np.zeros((count, 2, width))
        rest = dict(self._nodes)
        for level in range(self._level):
            for _, index in sorted(place for place in rest if place[0] == level):
                node, above = rest.pop((level, index)), (level + 1, index // 2)
                rest[above] = _sum(rest[above], node) if above in rest else node
        for (_, index), node in rest.items():
            found[index, :, : node.shape[1]] = node
        return found

    def state(self) -> State:
        """Return what a checkpoint holds."""
        width = max((node.shape[1] for node in self._nodes.values()), default=0)
        nodes = np.zeros((len(self._nodes), 2, width))
        for row, node in zip(nodes, self._nodes.values(), strict=True):
            row[:, : node.shape[1]] = node
        places = np.array(list(self._nodes), np.int64).reshape(-1, 2)
        return {"nodes": nodes, "places": places, "reached": np.array([self._next, self.most])}

    def join(self, states: Sequence[State]) -> None:
        """Go on from what was summed of all parts of a set, the first of them first.

        Raises: ValueError: one has blocks of more samples than the whole set has.
        """
        self._nodes, self._level = {}, 0
        self.most = int(states[0]["reached"][1])
        self._next = max(int(state["reached"][0]) for state in states)
        while self._next > self.most << self._level:
            self._level += 1
        for state in states:
            for (level, index), node in zip(state["places"].tolist(), state["nodes"], strict=True):
                # A damaged or foreign state: its sums are of more samples than a block can have.
                if level > self._level:
                    raise ValueError(f"a block is of {1 << level} samples, not of {self.samples_per_block}")
                self._put(level, index, node)

    def _reach(self, samples: int) -> None:
        """Make the blocks so large that there are few enough of so many samples."""
        self._next = samples
        # Blocks double when there are too many, so that memory stays bounded without knowing the number
        # before.
        while samples > self.most << self._level:
            level, self._level = self._level, self._level + 1
            for place in [place for place in self._nodes if place[0] == level]:
                if place in self._nodes:
                    self._put(*place, self._nodes.pop(place))

    def _put(self, level: int, index: int, row: Float64Array) -> None:
        while level < self._level:
            # The neighbor in a pair differs in the lowest bit of its number.
            other = self._nodes.pop((level, index ^ 1), None)
            if other is None:
                break
            level, index, row = level + 1, index // 2, _sum(other, row)
        self._nodes[level, index] = row


def _sum(one: Float64Array, other: Float64Array) -> Float64Array:
    """Return the sum of two nodes, where the narrower one has zeros for the channels that it lacks."""
    if one.shape == other.shape:
        return one + other
    # Outputs whose channels differ in number from batch to batch: missing channels count as 0.
    narrow, wide = sorted((one, other), key=lambda node: node.shape[1])
    found = wide.copy()
    found[:, : narrow.shape[1]] += narrow
    return found


def raised(name: str, error: Exception) -> MetricError:
    """Return the error that says what code of the user's raised."""
    return MetricError(
        f"{name} raised {type(error).__name__}: {first_line(error)}",
        hint="check that it accepts the output and the labels; --debug shows the traceback",
    )


def require_samples_first(name: str, output: Array, labels: Array) -> None:
    """Refuse an output whose samples lie on another axis, as those of a recurrent layer do."""
    count, shape = int(labels.shape[0] if labels.ndim else 1), output.shape
    if count > 1 and shape[0] != count and count in shape:
        raise MetricError(
            f"{name} has {count} labels, and {shape[0]} samples in an output of shape {format_shape(shape)}",
            hint=f"if its samples are on axis {shape.index(count)}, say so with the name of the output: "
            f"--set data.batch_axis.output={shape.index(count)}",
        )


def as_number(name: str, found: Array) -> float:
    """Return what a metric computed as a number."""
    if found.dtype.kind not in "biuf" or found.size != 1:
        raise MetricError(
            f"{name} returned {described(found)}, expected one number",
            hint="if the metric has a value for each class, ask for a mean, such as "
            "arguments = { average = 'macro' } under [[metric]]",
        )
    return float(found.reshape(()))


def described(found: Array) -> str:
    """Say what was given instead of what is wanted."""
    if found.dtype.kind not in "biuf":
        return str(found.reshape(-1)[:1])[:60]
    return "one number" if found.ndim == 0 else f"numbers of shape {format_shape(found.shape)}"
