"""Signal to quantization noise ratio of the worst channel of an output."""

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ptq_cli.core.tensors import Array
from ptq_cli.report.document.measurement import Channel, Unit
from ptq_cli.report.intervals.bootstrap import Float64Array
from ptq_cli.report.metrics.base import BLOCK, SampleSums
from ptq_cli.report.metrics.block_sums import BlockSums
from ptq_cli.report.metrics.recorder import State

MOST_BLOCKS = 256
"""Sums of each channel are kept for so many blocks of samples; more samples make the blocks larger."""

BLOCK_MEMORY = 32 << 20
"""Bytes of those sums: with many channels there are fewer blocks."""

FEWEST_BLOCKS = 20
"""Of fewer nothing is known about those that were not drawn."""

MOST_COLUMNS = 10
"""Numbers of a sample that may have a unit each; more are scores of classes, or a vector, on one scale."""

MOST_RESAMPLED = 8
"""Channels, the worst ones, among which a resample looks for its worst."""


class WorstChannelSqnr:
    """The smallest ``10 log10(sum float² / sum (float - quantized)²)`` of a channel, sums over all samples.

    A channel is one index along axis 1 or along the last axis, whichever is shorter; along axis 1 if both
    are equal. It is a class, a color, or a coordinate of a box. An SQNR of the whole output hides a channel
    of small values beside channels of large ones.

    If a sample has one vector of more than ten numbers, such as scores of classes, the numerator is the mean
    of all channels: scores are compared with one another, and one that happens to be near 0 for every sample
    is not lost because its noise is larger than itself.

    Shapes:
        update: [N, channels, ...] or [N, ..., channels], both the same.

    Units:
        decibels, as ``sqnr_db``.

    Edge case:
        A channel whose float values are all 0 has no ratio and is left out. If no channel is left, the value
        is that of ``sqnr_db``: inf without noise, otherwise -inf. A channel that only some batches have (the
        axis differs in length) is summed over those.

    Source:
        As ``Sqnr``, for each channel.

    Example:
        >>> worst = WorstChannelSqnr()
        >>> worst.update(np.array([[300.0, 1.0]]), np.array([[301.0, 0.9]]))
        >>> round(worst.compute(), 9), worst.channel
        (20.0, Channel(axis=1, index=1))
    """

    unit: ClassVar[Unit] = "decibel"
    higher_is_better: ClassVar[bool] = True

    def __init__(self) -> None:
        self._sums = BlockSums(MOST_BLOCKS)
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
        together = max(1, BLOCK // max(1, float_output[:1].size))
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
        if together > 1 and self._sums.most < FEWEST_BLOCKS:
            return "it has too many channels to keep their sums for blocks of samples"
        worst = np.argsort(self._ratios(), kind="stable")[:MOST_RESAMPLED]
        rows = blocks[:, :, worst]
        return SampleSums(rows.reshape(len(rows), -1), _smallest, blocks=together > 1)

    def state(self) -> State:
        """Return what a checkpoint holds."""
        return {
            **self._sums.state(),
            "axis": np.array(self._axis),
            "is_vector": np.array(self._is_vector),
        }

    def load_state(self, state: State) -> None:
        """Go on from what a checkpoint held."""
        self.join([state])

    def start_at(self, sample: int) -> None:
        """Take the first sample that comes for this one of the set."""
        self._first = sample

    def join(self, states: Sequence[State]) -> None:
        """Go on from what was summed of all parts of a set, the first of them first.

        Raises:
            ValueError: the channels of one are on another axis.
        """
        axes = {int(state["axis"]) for state in states}
        if len(axes) != 1:
            raise ValueError(f"channels are on axes {sorted(axes)}")
        (self._axis,) = axes
        self._is_vector = any(bool(state["is_vector"]) for state in states)
        self._sums.join(list(states))

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
    most = MOST_BLOCKS
    while most > 2 and 16 * most * channels > BLOCK_MEMORY:
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
