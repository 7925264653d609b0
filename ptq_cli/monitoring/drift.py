"""How far the values of a tensor have moved since its calibration, and how far chance alone moves them.

A calibration keeps one histogram of each tensor, and nothing of single samples. New data come in blocks of
whole samples, of which each leaves a row of sums: how many of its values lie below each edge of a grid, how
many are clipped, their squared error and their power. All that is told is a function of sums of rows, so
that resampling blocks resamples whole samples, whatever depends on what within one.

If nothing has moved, the samples of the calibration vary as the new ones do. The new blocks alone then tell
how far a draw of so many calibration samples and another of so many new ones lie apart by chance.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ptq_cli.amax.choice import SignedBins, error_of_bins, power_of_bins, signed_bins
from ptq_cli.collectors.tensor_statistics import TensorStatistics
from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.formats import IntegerFormat
from ptq_cli.evaluation.bootstrap import RESAMPLES, SEED, interval_of
from ptq_cli.evaluation.interval import Interval

Values = npt.NDArray[np.float64]

CELLS = 128
"""Of the grid over a quantizer's range: two steps of 8 bits each."""
STEPS = 256
"""A range has as many steps of 8 bits; whatever the format, distances are in these."""
NULL_DRAWS = 4000
FALSE_ALARM = 0.001
"""Chance that data which did not move are called moved, of all tensors together."""
LEAST_DISTANCE = 1.0
"""In steps of 8 bits. Smaller movements do no harm: rounding alone moves a value by up to half a step."""
FEWEST_SAMPLES, FEWEST_CALIBRATED, FEWEST_BLOCKS = 100, 32, 20
"""New samples, samples of the calibration, and blocks. Of fewer, sums of skewed tensors are not normal
enough to tell what happens once in 1,000 times."""
BLOCKS = 64
"""At most: from twice as many samples on, neighbors share a block."""


# The grid of a tensor, and the row of sums that a block of samples leaves on it.


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Where a tensor's values are counted.

    Attributes:
        low, high: the range of the quantizer: what lies beyond is off by more than half a step.
        edges: from one end to the other.
        widths: what a difference at each edge adds to the distance.

    Shapes:
        edges, widths: (E,).

    Units:
        low, high, edges: as the tensor's values; widths: steps of 8 bits.
    """

    parameters: QuantParameters
    low: float
    high: float
    edges: Values
    widths: Values

    @property
    def step(self) -> float:
        """A step of 8 bits."""
        return (self.high - self.low) / STEPS


def make_grid(parameters: QuantParameters) -> Grid:
    """Return the grid of a tensor with the parameters of its quantizer."""
    scale, zero_point = float(parameters.scale), int(parameters.zero_point)
    half = 0.5 if isinstance(parameters.format, IntegerFormat) else 0.0
    low = (parameters.format.qmin - zero_point - half) * scale
    high = (parameters.format.qmax - zero_point + half) * scale
    widths = np.full(CELLS + 1, STEPS / CELLS)
    widths[[0, -1]] /= 2
    edges = np.linspace(low, high, CELLS + 1)
    return Grid(parameters=parameters, low=low, high=high, edges=edges, widths=widths)


COUNT, CLIPPED, ERROR, POWER = 0, -3, -2, -1
"""Columns of a row; between the first and the others are the counts below each edge."""


def row_of(grid: Grid, statistics: TensorStatistics) -> Values:
    """Return what values add to the sums of a tensor.

    Shapes:
        the result has (E + 4,), for E edges.

    Edge case:
        Values of a bin that an edge cuts are taken to be spread evenly over the bin. Of a quantizer to a
        float format the error is NaN. Without a histogram there is no row.

    Example:
        >>> from ptq_cli.collectors.max_collector import HistogramCollector
        >>> from ptq_cli.core.arithmetic import parameters_from_range
        >>> from ptq_cli.core.formats import UINT8
        >>> collector = HistogramCollector()
        >>> collector.update(np.float32([0.0, 100.0, 300.0]))
        True
        >>> row = row_of(make_grid(parameters_from_range(0.0, 255.0, UINT8)), collector.statistics())
        >>> row[COUNT].item(), row[CLIPPED].item(), round(row[ERROR].item())
        (3.0, 1.0, 2025)
    """
    if statistics.histogram is None:
        raise ValueError("a row needs a histogram, but only ranges were kept")
    bins = signed_bins(statistics, statistics.histogram)
    below = _below(bins, statistics.zeros, grid.edges)
    error = math.nan
    if isinstance(grid.parameters.format, IntegerFormat):
        error = error_of_bins(bins, statistics.count, grid.parameters).mse * statistics.count
    clipped = statistics.count - below[-1] + below[0]
    return np.concatenate([[statistics.count], below, [clipped, error, power_of_bins(bins)]])


def _below(bins: SignedBins, zeros: int, edges: Values) -> Values:
    """Return how many values are at most as large as each edge."""
    wide = bins.high > bins.low
    ends = np.column_stack([bins.low[wide], bins.high[wide]]).ravel()
    below = np.concatenate([[0], np.cumsum(bins.counts[wide])])
    counted = np.column_stack([below[:-1], below[1:]]).ravel().astype(np.float64)
    found: Values = np.interp(edges, ends, counted) if ends.size else np.zeros(edges.size)
    points = np.concatenate([[0], np.cumsum(bins.counts[~wide])])
    found = found + points[np.searchsorted(bins.low[~wide], edges, side="right")]
    return found + zeros * (edges >= 0.0)


# What sums tell.


def distances(grid: Grid, sums: Values, calibrated: Values) -> Values:
    """Return how far values lie from those of the calibration.

    The Wasserstein distance of order 1: how far a value has to be moved, on average, to turn one histogram
    into the other. It is the area between the distribution functions, which are known at the edges; what
    moves within a cell is not seen. Values beyond the range count as its ends, which the quantizer makes of
    them: a few far away do not outweigh all others, and ``clipped_share`` tells how many there are.

    Args:
        grid: of the tensor.
        sums: of rows of the new values.
        calibrated: the row of the calibration.

    Shapes:
        sums: (..., E + 4); the result has (...).

    Units:
        steps of 8 bits of the quantizer's range.

    Source:
        Vallender 1974, "Calculation of the Wasserstein distance between probability distributions on the
        line".
    """
    with np.errstate(divide="ignore", invalid="ignore"):  # a draw of blocks without values of a branch
        new = sums[..., 1:CLIPPED] / sums[..., :1]
    found: Values = np.abs(new - calibrated[1:CLIPPED] / calibrated[COUNT]) @ grid.widths
    return found


def clipped_share(sums: Values) -> Values:
    """Return the share of values beyond the quantizer's range."""
    with np.errstate(divide="ignore", invalid="ignore"):
        share: Values = np.clip(sums[..., CLIPPED] / sums[..., COUNT], 0.0, 1.0)
    return share


def noise(sums: Values) -> Values:
    """Return the expected power of the quantization error over that of the values; 0 where there is none."""
    error, power = sums[..., ERROR], sums[..., POWER]
    return np.where(error > 0, error / np.where(power > 0, power, 1.0), 0.0)


def decibels(ratio: float) -> float:
    """Return the SQNR of a ratio of noise to signal.

    Example:
        >>> decibels(0.001), decibels(0.0)
        (30.0, inf)
    """
    return -10 * math.log10(ratio) if ratio > 0 else math.inf


# Blocks of whole samples: intervals, and what chance explains.


class Blocks:
    """The rows of blocks of samples that follow one another; neighbors are joined when there are too many.

    Blocks of neighbors keep what samples depend on each other, as in the frames of a video, within a block.

    Source:
        Carlstein 1986, "The use of subseries values for estimating the variance of a general statistic from
        a stationary sequence".
    """

    def __init__(self) -> None:
        self._rows: dict[str, list[Values]] = {}
        self._together, self._begun = 1, 0
        self.samples = 0

    def add(self, rows: Mapping[str, Values], samples: int) -> None:
        """Add what some samples left, the same tensors each time."""
        self.samples += samples
        for name, row in rows.items():
            kept = self._rows.setdefault(name, [])
            if self._begun:
                kept[-1] = kept[-1] + row
            else:
                kept.append(row)
        self._begun = (self._begun + 1) % self._together
        if not self._begun and self.count == 2 * BLOCKS:
            self._rows = {name: _joined(kept) for name, kept in self._rows.items()}
            self._together *= 2

    @property
    def count(self) -> int:
        """How many blocks there are."""
        return len(next(iter(self._rows.values()), ()))

    def rows(self, name: str) -> Values:
        """Return the rows of a tensor, a block each."""
        return np.array(self._rows[name])


def _joined(rows: Sequence[Values]) -> list[Values]:
    return [first + second for first, second in zip(rows[::2], rows[1::2], strict=True)]


@dataclass(frozen=True)
class Chance:
    """How far tensors lie from their calibration if nothing has moved: at most so far, but for one in 1,000.

    Attributes:
        distances: by tensor; 0 of one whose samples are all alike.

    Units:
        steps of 8 bits.
    """

    distances: Mapping[str, float]


def chance_of(
    blocks: Blocks, grids: Mapping[str, Grid], calibration_samples: int, *, draws: int = NULL_DRAWS
) -> Chance:
    """Return how far chance alone moves the tensors.

    Each draw weighs the deviations of all blocks with the same normal numbers for all tensors, so that what
    depends on one sample stays together, and gives the difference between two sets of as many samples as
    were calibrated on and as there are now. A factor of its own makes it as wide as Student's distribution
    for so many blocks. Of each draw the largest distance counts, in units of the tensor's mean one: one
    limit holds for all tensors at once, however many there are and however they depend on each other.

    Source:
        Chernozhukov, Chetverikov and Kato 2013, "Gaussian approximations and multiplier bootstrap for maxima
        of sums of high-dimensional random vectors"; Westfall and Young 1993, "Resampling-based multiple
        testing", for the largest of all.
    """
    generator, count = np.random.default_rng(SEED), blocks.count
    weights = generator.standard_normal((draws, count))
    weights *= np.sqrt((count - 1) / generator.chisquare(count - 1, (draws, 1)))
    weights *= math.sqrt((1 + blocks.samples / calibration_samples) / (count * (count - 1)))
    weights = weights.astype(np.float32)
    largest, means = np.zeros(draws), {}
    for name, grid in grids.items():
        rows = blocks.rows(name)
        mean = rows.mean(axis=0)
        share = mean[1:CLIPPED] / mean[COUNT]
        deviations = (rows[:, 1:CLIPPED] - share * rows[:, :1]) / mean[COUNT]
        found = np.abs(weights @ deviations.astype(np.float32)) @ grid.widths.astype(np.float32)
        means[name] = float(found.mean())
        if means[name] > 0:
            largest = np.maximum(largest, found / means[name])
    limit = float(np.quantile(largest, 1 - FALSE_ALARM))
    return Chance({name: limit * mean for name, mean in means.items()})


class Resampled:
    """Intervals of what two blocks or more of new data tell, by drawing the same ones for each tensor."""

    def __init__(self, blocks: int) -> None:
        drawn = np.random.default_rng(SEED).multinomial(blocks, [1 / blocks] * blocks, RESAMPLES)
        # Once as they are, then as drawn, then without each block.
        self._weights = np.concatenate([np.ones((1, blocks)), drawn, 1.0 - np.eye(blocks)]).astype(np.float64)

    def sums(self, rows: Values) -> Values:
        """Return the sums of the rows of all blocks, of each draw, and without each block.

        Shapes:
            rows: (B, k); the result has (1 + draws + B, k).
        """
        return self._weights @ rows

    @staticmethod
    def interval(values: Values) -> Interval | None:
        """Return the 95 % interval of a value computed from ``sums``; None if it is not finite."""
        left_out, drawn = values[1 + RESAMPLES :], values[1 : 1 + RESAMPLES]
        if len(left_out) < 2 or not np.isfinite(values).all():
            return None
        return interval_of(float(values[0]), left_out, drawn, "blocks")
