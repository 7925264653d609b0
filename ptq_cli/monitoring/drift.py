"""How far the values of a tensor have moved since its calibration, and what ``drift.json`` holds of it.

A calibration keeps one histogram of each tensor, and nothing of single samples. New data come in blocks of
whole samples, of which each leaves a row of sums: how many of its values lie below each edge of a grid, how
many are clipped, their squared error and their power. All that is told is a function of sums of rows, so
that resampling blocks resamples whole samples, whatever depends on what within one.

If nothing has moved, the samples of the calibration vary as the new ones do. The new blocks alone then tell
how far a draw of so many calibration samples and another of so many new ones lie apart by chance.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from ptq_cli.amax.choice import SignedBins, error_of_bins, power_of_bins, signed_bins
from ptq_cli.collectors.tensor_statistics import NonFinite, TensorStatistics
from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.documents import FileFormat
from ptq_cli.core.formats import IntegerFormat
from ptq_cli.evaluation.bootstrap import RESAMPLES, SEED, interval_of
from ptq_cli.evaluation.interval import Interval

_Verdict = Literal["pass", "fail", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Movement:
    """How far the histogram of a tensor lies from the calibration's."""

    DERIVED: ClassVar[tuple[str, ...]] = ("moved",)

    distance: Annotated[
        float, "Wasserstein distance of order 1, in steps of 8 bits: 1/256 of the quantizer's range."
    ]
    interval: Annotated[Interval | None, "Of the distance; null if there are too few blocks of samples."]
    chance: Annotated[
        float | None,
        "The distance that chance explains, for all tensors at once but in one of 1,000 cases; null if there "
        "are too few blocks of samples.",
    ]
    least: Annotated[float, "The smallest distance that counts, however surely it was measured."]

    @property
    def moved(self) -> bool:
        """Whether it lies further than chance explains, and far enough to count."""
        return self.chance is not None and self.distance > max(self.chance, self.least)


@dataclass(frozen=True, kw_only=True)
class TensorDrift:
    """A quantized tensor, with new values."""

    name: Annotated[str, "The tensor's name."]
    format: Annotated[str, "What it is quantized to."]
    range_low: Annotated[float, "The lower end of the quantizer's range: values below are clipped."]
    range_high: Annotated[float, "The upper end."]
    low: Annotated[float, "The smallest finite new value."]
    high: Annotated[float, "The largest finite new value."]
    calibration_low: Annotated[float, "The smallest finite value of the calibration."]
    calibration_high: Annotated[float, "The largest finite value of the calibration."]
    clipped: Annotated[float, "Share of the new values that is clipped, 0 to 1."]
    clipped_interval: Annotated[Interval | None, "Of that share; null for fewer than two blocks of samples."]
    calibration_clipped: Annotated[
        float | None, "Share of the calibration's values that is clipped; null if only ranges were kept."
    ]
    sqnr_db: Annotated[
        float | None,
        "SQNR that rounding and clipping alone lead to expect of the new values, decibels; null for a float "
        "format.",
    ]
    calibration_sqnr_db: Annotated[
        float | None, "The same of the calibration's values; null also if only ranges were kept."
    ]
    nonfinite: Annotated[NonFinite, "How many new values were not finite; the rest leaves them out."]
    movement: Annotated[Movement | None, "How far it has moved; null if only ranges were kept."]


@dataclass(frozen=True, kw_only=True)
class ExpectedSqnr:
    """The SQNR that the noise of all quantized tensors leads to expect of the model's output.

    Their ratios of noise to signal add up (Lin et al. 2016). Weights are left out: data do not change them.
    """

    sqnr_db: Annotated[float, "With the new values, decibels; inf without any noise."]
    interval: Annotated[Interval | None, "Of it; null for fewer than two blocks of samples."]
    calibration_db: Annotated[float | None, "With the calibration's; null if only ranges were kept."]


@dataclass(frozen=True, kw_only=True)
class Drift:
    """New data beside those of a calibration."""

    FORMAT: ClassVar[FileFormat] = FileFormat(name="ptq.drift", version=1, noun="drift")
    DERIVED: ClassVar[tuple[str, ...]] = ("verdict",)

    faults: Annotated[
        tuple[str, ...], "Why the verdict is fail: limits that are exceeded, tensors that moved."
    ]
    doubt: Annotated[str, "Why nothing is decided; empty if something is."]
    source: Annotated[str, "The new data, as they were named."]
    samples: Annotated[int, "How many new samples were seen."]
    blocks: Annotated[int, "Blocks of whole samples that were drawn for the intervals."]
    calibration_samples: Annotated[int, "How many samples the calibration has seen."]
    inputs_only: Annotated[bool, "Whether only inputs were read, and no model was run."]
    exported: Annotated[
        bool, "Whether the ranges were read from the run's quantized model; if false, they were decided."
    ]
    max_clipped: Annotated[float | None, "Limit of the share that is clipped of any tensor; null if none."]
    min_expected_sqnr: Annotated[float | None, "Limit of the expected SQNR, decibels; null if none."]
    expected: Annotated[ExpectedSqnr | None, "The expected SQNR; null if no tensor becomes integers."]
    tensors: Annotated[tuple[TensorDrift, ...], "Those that moved most come first."]

    @property
    def verdict(self) -> _Verdict:
        """Whether the new data are as those of the calibration, or keep the limits where there are any."""
        if self.faults:
            return "fail"
        return "undecided" if self.doubt else "pass"

    @property
    def moved(self) -> tuple[TensorDrift, ...]:
        """The tensors that moved further than chance explains."""
        return tuple(item for item in self.tensors if item.movement is not None and item.movement.moved)


Values = npt.NDArray[np.float64]
CELLS = 128  # cells of the grid over a quantizer's range: two steps of 8 bits each
_STEPS = 256  # steps of 8 bits over a range: the unit of distances, whatever the format
NULL_DRAWS = 4000  # draws of what chance alone moves
FALSE_ALARM = 0.001  # chance that data which did not move are called moved, of all tensors together
LEAST_DISTANCE = 1.0  # steps of 8 bits that do harm: rounding alone moves a value by up to half a step
# Below these, sums of skewed tensors are not normal enough to tell what happens once in 1,000 times.
FEWEST_SAMPLES, FEWEST_CALIBRATED, FEWEST_BLOCKS = 100, 32, 20
BLOCKS = 64  # kept at most: from twice as many samples on, neighbors share a block


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Where a tensor's values are counted.

    Attributes:
        low, high: the range of the quantizer: what lies beyond is off by more than half a step.
        edges: from one end to the other.
        widths: what a difference at each edge adds to the distance.

    Shapes: edges, widths: (E,).
    Units: low, high, edges: as the tensor's values; widths: steps of 8 bits.
    """

    parameters: QuantParameters
    low: float
    high: float
    edges: Values
    widths: Values

    @property
    def step(self) -> float:
        """A step of 8 bits."""
        return (self.high - self.low) / _STEPS


def make_grid(parameters: QuantParameters) -> Grid:
    """Grid of a tensor with the parameters of its quantizer."""
    scale, zero_point = float(parameters.scale), int(parameters.zero_point)
    half = 0.5 if isinstance(parameters.format, IntegerFormat) else 0.0
    low = (parameters.format.qmin - zero_point - half) * scale
    high = (parameters.format.qmax - zero_point + half) * scale
    widths = np.full(CELLS + 1, _STEPS / CELLS)
    widths[[0, -1]] /= 2
    edges = np.linspace(low, high, CELLS + 1)
    return Grid(parameters=parameters, low=low, high=high, edges=edges, widths=widths)


# Columns of a row; between the first and the others are the counts below each edge.
COUNT, CLIPPED, ERROR, POWER = 0, -3, -2, -1


def row_of(grid: Grid, statistics: TensorStatistics) -> Values:
    """Row of sums that a tensor's values add.

    Shapes: the result has (E + 4,), for E edges.
    Edge case: Values of a bin that an edge cuts are taken to be spread evenly over the bin. Of a quantizer to
    a float format the error is NaN. Without a histogram there is no row.

    Example:
        >>> from ptq_cli.collectors.histogram_collector import HistogramCollector
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
    """Number of values that are at most as large as each edge."""
    wide = bins.high > bins.low
    ends = np.column_stack([bins.low[wide], bins.high[wide]]).ravel()
    below = np.concatenate([[0], np.cumsum(bins.counts[wide])])
    counted = np.column_stack([below[:-1], below[1:]]).ravel().astype(np.float64)
    found: Values = np.interp(edges, ends, counted) if ends.size else np.zeros(edges.size)
    points = np.concatenate([[0], np.cumsum(bins.counts[~wide])])
    found = found + points[np.searchsorted(bins.low[~wide], edges, side="right")]
    return found + zeros * (edges >= 0.0)


def distances(grid: Grid, sums: Values, calibrated: Values) -> Values:
    """Distance of values from those of the calibration.

    The Wasserstein distance of order 1: how far a value has to be moved, on average, to turn one histogram
    into the other. It is the area between the distribution functions, which are known at the edges; what
    moves within a cell is not seen. Values beyond the range count as its ends, which the quantizer makes of
    them: a few far away do not outweigh all others, and ``clipped_share`` tells how many there are.

    Args:
        grid: of the tensor.
        sums: of rows of the new values.
        calibrated: the row of the calibration.

    Shapes: sums: (..., E + 4); the result has (...).
    Units: steps of 8 bits of the quantizer's range.
    Source: Vallender 1974, "Calculation of the Wasserstein distance between probability distributions on the
    line".
    """
    with np.errstate(divide="ignore", invalid="ignore"):  # a draw of blocks without values of a branch
        new = sums[..., 1:CLIPPED] / sums[..., :1]
    found: Values = np.abs(new - calibrated[1:CLIPPED] / calibrated[COUNT]) @ grid.widths
    return found


def clipped_share(sums: Values) -> Values:
    """Share of values beyond the quantizer's range."""
    with np.errstate(divide="ignore", invalid="ignore"):
        share: Values = np.clip(sums[..., CLIPPED] / sums[..., COUNT], 0.0, 1.0)
    return share


def noise(sums: Values) -> Values:
    """Expected power of the quantization error over that of the values; 0 where there is none."""
    error, power = sums[..., ERROR], sums[..., POWER]
    return np.where(error > 0, error / np.where(power > 0, power, 1.0), 0.0)


def decibels(ratio: float) -> float:
    """SQNR of a ratio of noise to signal.

    Example:
        >>> decibels(0.001), decibels(0.0)
        (30.0, inf)
    """
    return -10 * math.log10(ratio) if ratio > 0 else math.inf


class Blocks:
    """The rows of blocks of samples that follow one another; neighbors are joined when there are too many.

    Blocks of neighbors keep what samples depend on each other, as in the frames of a video, within a block.

    Source: Carlstein 1986, "The use of subseries values for estimating the variance of a general statistic
    from a stationary sequence".
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
            for name, kept in self._rows.items():
                self._rows[name] = [one + other for one, other in zip(kept[::2], kept[1::2], strict=True)]
            self._together *= 2

    @property
    def count(self) -> int:
        """How many blocks there are."""
        return len(next(iter(self._rows.values()), ()))

    def rows(self, name: str) -> Values:
        """Rows of a tensor, a block each."""
        return np.array(self._rows[name])


@dataclass(frozen=True)
class Chance:
    """How far tensors lie from their calibration if nothing has moved: at most so far, but for one in 1,000.

    Units: steps of 8 bits.
    """

    distances: Mapping[str, float]  # by tensor; 0 of one whose samples are all alike


def chance_of(
    blocks: Blocks, grids: Mapping[str, Grid], calibration_samples: int, *, draws: int = NULL_DRAWS
) -> Chance:
    """Distances that chance alone moves the tensors.

    Each draw weighs the deviations of all blocks with the same normal numbers for all tensors, so that what
    depends on one sample stays together, and gives the difference between two sets of as many samples as
    were calibrated on and as there are now. A factor of its own makes it as wide as Student's distribution
    for so many blocks. Of each draw the largest distance counts, in units of the tensor's mean one: one
    limit holds for all tensors at once, however many there are and however they depend on each other.

    Source: Chernozhukov, Chetverikov and Kato 2013, "Gaussian approximations and multiplier bootstrap for
    maxima of sums of high-dimensional random vectors"; Westfall and Young 1993, "Resampling-based multiple
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
        """Sums of the rows of all blocks, of each draw, and without each block.

        Shapes: rows: (B, k); the result has (1 + draws + B, k).
        """
        return self._weights @ rows

    @staticmethod
    def interval(values: Values) -> Interval | None:
        """95 % interval of a value computed from ``sums``; None if it is not finite."""
        left_out, drawn = values[1 + RESAMPLES :], values[1 : 1 + RESAMPLES]
        if len(left_out) < 2 or not np.isfinite(values).all():
            return None
        return interval_of(float(values[0]), left_out, drawn, "blocks")
