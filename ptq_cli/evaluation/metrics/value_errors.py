"""Errors of numbers: the SQNR and the largest difference of two models; mean errors and R² with labels."""

import math
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from ptq_cli.core.errors import MetricError
from ptq_cli.core.tensors import Array
from ptq_cli.evaluation.bootstrap import Float64Array, unseen_share
from ptq_cli.evaluation.document.measurement import Channel, Unit
from ptq_cli.evaluation.metrics.base import (
    BLOCK_VALUES,
    BlockSums,
    Labels,
    Recorded,
    SampleSums,
    State,
    Targets,
    paired_rows,
)


class Sqnr(Recorded):
    """``10 log10(sum float² / sum (float - quantized)²)``, both sums over all samples in float64.

    Shapes: update: any, both the same.
    Units: decibels; 6 dB more is one bit more.
    Edge case: Identical outputs give inf, also where all are 0. A float output of zeros with noise gives
        -inf.

    Source: Bennett 1948, "Spectra of quantized signals"; Gray and Neuhoff 1998, "Quantization".

    Example:
        >>> sqnr = Sqnr()
        >>> sqnr.update(np.array([[10.0, 0.0]]), np.array([[9.0, 0.0]]))
        >>> sqnr.compute()
        20.0
    """

    unit: ClassVar[Unit] = "decibel"
    higher_is_better: ClassVar[bool] = True

    @staticmethod
    def accepts(output: Array, samples: int) -> bool:  # noqa: ARG004 - one interface
        """Any output has a ratio."""
        return True

    def update(self, float_output: Array, quantized_output: Array) -> None:
        """Add one batch to both sums."""
        for exact, noisy in paired_rows(float_output, quantized_output):
            noise = exact - noisy
            self._add(np.stack([np.sum(exact * exact, 1), np.sum(noise * noise, 1)], axis=1))

    def compute(self) -> float:
        """The ratio over all samples so far, in dB."""
        signal, noise = self.rows.sum(axis=0) if self.count else (0.0, 0.0)
        if noise == 0:
            return math.inf
        if signal == 0:
            return -math.inf
        return 10 * math.log10(float(signal) / float(noise))

    def resampling(self) -> SampleSums:
        """Each sample's signal and noise, of whose sums the value is the ratio in dB."""
        return SampleSums(self.rows, lambda sums: 10 * np.log10(sums[..., 0] / sums[..., 1]))


# Sums of each channel are kept for so many blocks of samples; more samples make the blocks larger.
_MOST_BLOCKS = 256

_BLOCK_MEMORY = 32 << 20  # Bytes of those sums: with many channels there are fewer blocks
_FEWEST_BLOCKS = 20  # Of fewer nothing is known about those that were not drawn

# Numbers of a sample that may have a unit each; more are scores of classes, or a vector, on one scale.
MOST_COLUMNS = 10

MOST_RESAMPLED = 8  # Channels, the worst ones, among which a resample looks for its worst


class WorstChannelSqnr:
    """The smallest ``10 log10(sum float² / sum (float - quantized)²)`` of a channel, sums over all samples.

    A channel is one index along axis 1 or along the last axis, whichever is shorter; along axis 1 if both
    are equal. It is a class, a color, or a coordinate of a box. An SQNR of the whole output hides a channel
    of small values beside channels of large ones.

    If a sample has one vector of more than ten numbers, such as scores of classes, the numerator is the mean
    of all channels: scores are compared with one another, and one that happens to be near 0 for every sample
    is not lost because its noise is larger than itself.

    Shapes: update: [N, channels, ...] or [N, ..., channels], both the same.
    Units: decibels, as ``sqnr_db``.
    Edge case: A channel whose float values are all 0 has no ratio and is left out. If no channel is left, the
        value is that of ``sqnr_db``: inf without noise, otherwise -inf. A channel that only some batches have
        (the axis differs in length) is summed over those.

    Source: As ``Sqnr``, for each channel.

    Example:
        >>> worst = WorstChannelSqnr()
        >>> worst.update(np.array([[300.0, 1.0]]), np.array([[301.0, 0.9]]))
        >>> round(worst.compute(), 9), worst.channel
        (20.0, Channel(axis=1, index=1))
    """

    unit: ClassVar[Unit] = "decibel"
    higher_is_better: ClassVar[bool] = True

    def __init__(self) -> None:
        self._sums = BlockSums(_MOST_BLOCKS)
        self._axis = 0
        """That of the channels; 0 before the first batch tells."""
        self._first = 0
        self._is_vector = False

    @staticmethod
    def accepts(output: Array, samples: int) -> bool:
        """Axis 0 must be the samples, and there must be another for the channels."""
        return output.ndim >= 2 and output.shape[0] == samples

    def update(self, float_output: Array, quantized_output: Array) -> None:
        """Add one batch to the sums of each channel, a few samples at a time."""
        if not self._axis:
            last = float_output.ndim - 1
            self._axis = last if float_output.shape[last] < float_output.shape[1] else 1
            self._is_vector = last == 1 and float_output.shape[1] > MOST_COLUMNS
            self._sums = BlockSums(_most_blocks(float_output.shape[self._axis]))
            self._sums.start_at(self._first)
        together = max(1, BLOCK_VALUES // max(1, float_output[:1].size))
        for start in range(0, len(float_output), together):
            parts = (output[start : start + together] for output in (float_output, quantized_output))
            exact, noisy = (
                np.moveaxis(part, self._axis, 1).astype(np.float64).reshape(*_rows(part, self._axis), -1)
                for part in parts
            )
            # Not a product of matrices: the sum along a row must not depend on how many rows there are.
            squares = [np.sum(part * part, axis=2) for part in (exact, exact - noisy)]
            self._sums.add(np.stack(squares, axis=1))

    @property
    def channel(self) -> Channel | None:
        """The worst channel; None if none has a ratio."""
        found = self._ratios()
        return Channel(self._axis, int(np.argmin(found))) if np.isfinite(found).any() else None

    def compute(self) -> float:
        """The ratio of the worst channel over all samples so far, in dB."""
        found = self._ratios()
        if found.size and found.min() < math.inf:
            return float(found.min())
        signal, noise = self._blocks().sum(axis=(0, 2))
        return -math.inf if noise > 0 and signal == 0 else math.inf

    def resampling(self) -> SampleSums | str:
        """The worst channels' signal and noise in each block; their smallest ratio is the value."""
        blocks, together = self._blocks(), self._sums.samples_per_block
        if together > 1 and self._sums.most < _FEWEST_BLOCKS:
            return "it has too many channels to keep their sums for blocks of samples"
        worst = np.argsort(self._ratios(), kind="stable")[:MOST_RESAMPLED]
        rows = blocks[:, :, worst]
        return SampleSums(rows.reshape(len(rows), -1), _smallest, blocks=together > 1)

    def state(self) -> State:
        """Return what a checkpoint holds."""
        return {**self._sums.state(), "axis": np.array(self._axis), "is_vector": np.array(self._is_vector)}

    def start_at(self, sample: int) -> None:
        """Take the first sample that comes for this one of the set."""
        self._first = sample

    def join(self, states: Sequence[State]) -> None:
        """Go on from what was summed of all parts of a set, the first of them first.

        Raises: ValueError: the channels of one are on another axis.
        """
        axes = {int(state["axis"]) for state in states}
        if len(axes) != 1:
            raise ValueError(f"channels are on axes {sorted(axes)}")
        (self._axis,) = axes
        self._is_vector = any(bool(state["is_vector"]) for state in states)
        self._sums.join(states)

    def _ratios(self) -> Float64Array:
        """Return each channel's ratio in dB; inf for one without noise or without values."""
        return _ratio(*self._blocks().sum(axis=0))

    def _blocks(self) -> Float64Array:
        """Return the energy that each channel's noise is compared with, and the noise, of each block."""
        blocks = self._sums.blocks()
        if self._is_vector:
            blocks = blocks.copy()
            blocks[:, 0] = blocks[:, 0].mean(axis=1, keepdims=True)
        return blocks


def _most_blocks(channels: int) -> int:
    """Return of how many blocks the sums may be kept."""
    most = _MOST_BLOCKS
    while most > 2 and 16 * most * channels > _BLOCK_MEMORY:
        most //= 2
    return most


def _rows(output: Array, axis: int) -> tuple[int, int]:
    return output.shape[0], output.shape[axis]


def _ratio(signal: Float64Array, noise: Float64Array) -> Float64Array:
    found = np.full(signal.shape, np.inf)
    counts = (signal > 0) & (noise > 0)
    found[counts] = 10 * np.log10(signal[counts] / noise[counts])
    return found


def _smallest(sums: Float64Array) -> Float64Array:
    halves = sums.reshape(*sums.shape[:-1], 2, -1)
    return np.asarray(_ratio(halves[..., 0, :], halves[..., 1, :]).min(axis=-1, initial=np.inf))


class MeanError(Recorded):
    """Mean over all elements of ``(output - target)²`` or ``|output - target|``.

    Args:
        name: what the report calls it.
        of_difference: what an element counts, ``np.square`` or ``np.abs`` of its difference.

    Shapes: update: output and labels [N, ...], both the same.
    Units: the target's, or their square.
    Edge case: The mean is over elements, not samples: it is the same where samples differ in size. 0 for
        identical arrays.

    Source: Gauss 1821, "Theoria combinationis observationum", for squares; Willmott and Matsuura 2005,
        "Advantages of the mean absolute error (MAE) over the root mean square error".

    Example:
        >>> mse = MeanError("mse", np.square)
        >>> mse.update(np.array([[1.0, 2.0]]), np.array([[1.0, 4.0]]))
        >>> mse.compute()
        2.0
    """

    unit: ClassVar[Unit] = "number"
    higher_is_better: ClassVar[bool] = False
    targets: ClassVar[Targets] = "values"

    def __init__(self, name: str, of_difference: Callable[[Float64Array], Float64Array]) -> None:
        super().__init__()
        self.name, self._of_difference = name, of_difference

    def update(self, output: Array, labels: Labels) -> None:
        """Add one batch."""
        for found, wanted in paired_rows(output, labels):
            errors = self._of_difference(found - wanted)
            sizes = np.full(len(errors), float(errors.shape[1]))
            self._add(np.stack([np.sum(errors, axis=1), sizes], axis=1))

    def of_sums(self, sums: Float64Array) -> Float64Array:
        """Return the mean from sums of each sample's errors and elements."""
        mean: Float64Array = sums[..., 0] / sums[..., 1]
        return mean


# With more targets the sums take more memory than a metric should: pixels of an image are not columns.
R2_MOST_COLUMNS = 256


class R2(Recorded):
    """``1 - sum (target - output)² / sum (target - mean target)²``, the mean over the target's columns.

    Shapes: update: output and labels [N, ...], both the same, at most 256 numbers a sample.
    Units: none; 1 is perfect, 0 what the mean of the targets would reach, below it is worse.
    Edge case: A column whose targets are all equal has 1 where the output is right, and 0 elsewhere.

    Raises: MetricError: there are more than 256 columns, or fewer than two samples.

    Source: Wright 1921, "Correlation and causation"; of several columns as scikit-learn's ``r2_score``.

    Example:
        >>> r2 = R2()
        >>> r2.update(np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 4.0]))
        >>> round(r2.compute(), 4)
        0.7857
    """

    unit: ClassVar[Unit] = "number"
    higher_is_better: ClassVar[bool] = True
    targets: ClassVar[Targets] = "values"
    name = "r2"

    def update(self, output: Array, labels: Labels) -> None:
        """Keep one batch."""
        columns = output.reshape(len(output), -1).shape[1]
        if columns > R2_MOST_COLUMNS:
            raise MetricError(
                f"r2 supports up to {R2_MOST_COLUMNS} numbers per sample, but the output has {columns}",
                hint="mse and mae support any number",
            )
        both = [array.reshape(len(output), -1).astype(np.float64) for array in (labels, output)]
        self._add(np.concatenate(both, axis=1))

    def compute(self) -> float:
        """The mean over columns so far."""
        if self.count < 2:
            raise MetricError(
                f"r2 needs two samples or more, got {len(self.counted_rows())}", hint="evaluate on more data"
            )
        found = self.resampling()
        return float(found.of_sums(found.rows.sum(axis=0)))

    def resampling(self) -> SampleSums:
        """Each sample's targets, their squares, and squared errors, of whose sums the value is made."""
        rows = self.rows
        columns = rows.shape[1] // 2
        # From the mean, so that squares of large targets leave digits for their differences.
        targets = rows[:, :columns] - rows[:, :columns].mean(axis=0, keepdims=True)
        errors = rows[:, :columns] - rows[:, columns:]
        sums = np.concatenate([targets, targets * targets, errors * errors], axis=1)
        # A flip gives the output of another sample.
        others = rows[:, :columns] - np.roll(rows[:, columns:], len(rows) // 2, axis=0)
        after, share = sums.sum(axis=0), float(unseen_share(len(rows)))
        after[-columns:] = (1 - share) * after[-columns:] + share * np.sum(others * others, axis=0)
        flipped = float(_mean_r2(after, len(rows), columns))
        return SampleSums(sums, lambda found: _mean_r2(found, len(rows), columns), flipped=flipped)


def _mean_r2(sums: Float64Array, samples: int, columns: int) -> Float64Array:
    total, squares, residual = (sums[..., index * columns : (index + 1) * columns] for index in range(3))
    variation = squares - total * total / samples
    # Rounding leaves a trace of variation where there is none.
    constant = variation <= 1e-12 * np.maximum(squares, np.finfo(np.float64).tiny)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(constant, np.where(residual == 0, 1.0, 0.0), 1 - residual / variation)
    mean: Float64Array = found.mean(axis=-1)
    return mean


class MaxAbsError:
    """``max |float - quantized|`` over all elements of all samples.

    Shapes: update: any, both the same.
    Units: the output's own.
    Edge case: 0 for identical outputs, and for outputs without elements.

    Source: Higham 2002, "Accuracy and stability of numerical algorithms", chapter 6 (the max norm).

    Example:
        >>> error = MaxAbsError()
        >>> error.update(np.array([[1.0, -3.0]]), np.array([[1.5, -1.0]]))
        >>> error.compute()
        2.0
    """

    unit: ClassVar[Unit] = "number"
    higher_is_better: ClassVar[bool] = False

    def __init__(self) -> None:
        self._largest = 0.0

    @staticmethod
    def accepts(output: Array, samples: int) -> bool:  # noqa: ARG004 - one interface
        """Any output has a largest difference."""
        return True

    def update(self, float_output: Array, quantized_output: Array) -> None:
        """Look at one batch."""
        for exact, noisy in paired_rows(float_output, quantized_output):
            self._largest = max(self._largest, float(np.max(np.abs(exact - noisy), initial=0.0)))

    def compute(self) -> float:
        """The largest difference so far."""
        return self._largest

    def resampling(self) -> str:
        """None: no drawing of samples tells how much larger one of those not drawn is."""
        return "the largest error of these samples does not bound that of other samples"

    def state(self) -> State:
        """Return what a checkpoint holds."""
        return {"largest": np.array(self._largest)}

    def start_at(self, sample: int) -> None:
        """Take the first sample that comes for this one of the set, which changes no difference."""

    def join(self, states: Sequence[State]) -> None:
        """Go on from the largest difference of all parts of a set."""
        self._largest = max(float(state["largest"]) for state in states)
