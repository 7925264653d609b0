"""The integers and scales whose products are nearest to the best real weights, as the inputs weigh them."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ptq_cli.recover.code_loops import (
    ChannelRows,
    CodeCandidates,
    Objective,
    Tried,
    choose_panel,
    improve,
    try_all,
)
from ptq_cli.recover.least_squares import Quadratic
from ptq_cli.recover.second_moments import Float64s, Int64s
from ptq_cli.runtime.products import multiplied_floats

_FEW = 9  # inputs of which every choice between next lower and next higher integer is tried: 2^9
_PANEL = 64  # inputs to which the errors of those behind them are taken by one product
CHANNELS_AT_ONCE = 32
_SMALLEST_SCALE, LARGEST_SCALE = 0.4, 1.1  # of that with which the largest integer is the largest weight
# By so many integers the smallest scale clips the largest weight: of 4,000 channels none was best with a
# smaller one, of 4 bits below 0.55, of 8 below 0.97.
_CLIPPED = 4.0
APART, FAR_APART = 0.02, 0.06  # distance of the scales, and of those of a large layer
STARTS, STARTS_OF_BYTES = 3, 2  # scales whose integers are improved one by one; more gain less than 0.02 dB
_REFITS = 3  # of the scales, each with its integers improved again
_LARGE = 1200  # inputs above which the time grows faster than what further scales are worth
MUCH = 1e8  # channels x inputs^2 above which a second start takes 0.4 times as long again for 0.01 dB
LARGEST_CODE = 127


@dataclass(frozen=True, eq=False, kw_only=True)
class Codes:
    """The integers of a layer's weights, and their scales.

    Attributes:
        integers: less the zero points; float64 while they are searched.
        scales: one for each block of inputs; a layer without blocks has one block.
        zeros: the zero points of blocks; None where all are 0.

    Shapes: integers: (M, K); scales, zeros: (M, B).
    """

    integers: npt.NDArray[Any]
    scales: npt.NDArray[Any]
    zeros: npt.NDArray[Any] | None = None

    @property
    def arrays(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
        """Integers, scales and zero points."""
        zeros = self.zeros if self.zeros is not None else np.zeros(self.scales.shape)
        return self.integers, self.scales, zeros

    def part(self, own: slice) -> "Codes":
        """Those of some channels."""
        zeros = self.zeros[own] if self.zeros is not None else None
        return Codes(integers=self.integers[own], scales=self.scales[own], zeros=zeros)

    def weights(self, block: Int64s) -> npt.NDArray[Any]:
        """Real weights, (M, K), by the block of each input, (K,)."""
        found: npt.NDArray[Any] = self.integers * self.scales[:, block]
        return found


def joined(parts: Sequence[Codes]) -> Codes:
    """Codes of the channels of several parts, in their order."""
    arrays = zip(*(part.arrays for part in parts), strict=True)
    integers, scales, zeros = (np.concatenate(items) for items in arrays)
    return Codes(integers=integers, scales=scales, zeros=zeros)


@dataclass(frozen=True, eq=False, kw_only=True)
class CodeGrid:
    """What integers and scales are allowed.

    Attributes:
        lowest, highest: integers.
        block: the block of each input.
        least: the smallest scale of each channel.
        free: scales are searched; otherwise those that the weights have are kept.
        pair_partners: the other inputs that each one is a pair with; -1 for none.
        most: what the integers of a pair of one sign may add up to.

    Shapes: block: (K,); least: (M,); pair_partners: (K, any).
    """

    lowest: int
    highest: int
    block: Int64s
    least: Float64s
    free: bool = True
    pair_partners: Int64s | None = None
    most: float = np.inf

    @property
    def limits(self) -> Float64s:
        """The lowest and highest integer, and the most that a pair of one sign adds up to."""
        return np.array([self.lowest, self.highest, self.most], np.float64)

    @property
    def partners(self) -> Int64s:
        """``pair_partners``, of which there may be none: (K, any)."""
        none = np.empty((len(self.block), 0), np.int64)
        return self.pair_partners if self.pair_partners is not None else none

    @property
    def has_zeros(self) -> bool:
        """Whether blocks have zero points, which are one of the integers."""
        return self.lowest == 0


def search_codes(
    quadratic: Quadratic, grid: CodeGrid, nearest: Codes, *, threads: int = 1
) -> tuple[Codes, Float64s, Float64s]:
    """Return integers and scales that minimize the objective, and each channel's with ``nearest`` and these.

    For each channel several scales are tried. At each, integers are found one after the other, each making up
    for what the earlier ones have lost (Babai's nearest plane); of few inputs, by trying all. The best are
    improved integer by integer until none can be changed alone, and the scale is fitted again, three times.
    What is found is never worse than what is given, and the same with any number of threads.

    Shapes: the objectives (M,).
    Edge case: A channel whose weights are all 0 stays as it is.

    Source: Frantar et al., GPTQ (2023).
    """
    found = Codes(integers=nearest.integers.astype(np.float64), scales=nearest.scales.copy())
    before = (quadratic.best * quadratic.pull).sum(axis=1)
    after = before.copy()
    upper = np.ascontiguousarray(quadratic.lower.T, np.float32)
    searched = np.flatnonzero(nearest.integers.any(axis=1))

    def part(first: int) -> None:
        own = searched[first : first + CHANNELS_AT_ONCE]
        before[own], after[own] = _search_channels(quadratic, upper, grid, found, own)

    firsts = range(0, len(searched), CHANNELS_AT_ONCE)
    if len(firsts) <= 1:
        list(map(part, firsts))
    else:
        with ThreadPoolExecutor(threads, "search") as pool:
            list(pool.map(part, firsts))
    return found, before, after


def _search_channels(
    quadratic: Quadratic, upper: npt.NDArray[np.float32], grid: CodeGrid, known: Codes, own: Int64s
) -> tuple[Float64s, Float64s]:
    """Replace integers and scales of some channels by better ones; return objectives before and after."""
    best, pull, least = quadratic.best[own], quadratic.pull[own], grid.least[own]
    integers, scales = known.integers[own], known.scales[own]
    (channels, size), blocks = best.shape, scales.shape[1]
    starts, refits = (_starts(grid.highest, size, len(known.integers)), _REFITS) if grid.free else (1, 0)
    trial = _trial(best, scales, least, grid)
    tried, rough = _nearest_planes(quadratic.lower, upper, best, trial, grid)
    chosen = np.argsort(rough, axis=1, kind="stable")[:, :starts]
    # Of each channel the best starts, and in the last place what is there.
    place = np.arange(channels)[:, None]
    steps = np.concatenate([trial[place, chosen], scales[:, None]], axis=1)
    codes = np.concatenate([np.moveaxis(tried, 0, 2)[place, chosen], integers[:, None]], axis=1)
    if size <= _FEW and blocks == 1:
        try_all(quadratic.curvature, best, steps, grid.limits, grid.partners, codes[:, :-1])
    missed = best[:, None] - steps[:, :, grid.block] * codes
    residual = multiplied_floats(missed.reshape(-1, size), quadratic.curvature).reshape(missed.shape)
    before = (missed[:, -1] * residual[:, -1]).sum(axis=1)
    members = np.argsort(grid.block, kind="stable").astype(np.int64).reshape(blocks, -1)
    shared = Objective(quadratic.curvature, grid.block, members, grid.limits, grid.partners)

    def improved(rows: tuple[Any, Any]) -> Float64s:
        """Improve some starts of some channels, and return their objectives."""
        parts = ChannelRows(codes[rows], steps[rows], residual[rows])
        error: Float64s = improve(shared, best[rows[0]], pull[rows[0]], least[rows[0]], refits, parts)
        codes[rows], steps[rows], residual[rows] = parts
        return error

    rows = np.repeat(np.arange(channels), starts), np.tile(np.arange(starts), channels)
    errors = improved(rows).reshape(channels, starts)
    last, after = errors.argmin(axis=1), errors.min(axis=1)
    # What is there is a start of its own only where nothing better was found.
    last[after >= before] = starts
    again = np.flatnonzero(last == starts)
    after[again] = improved((again, last[again]))
    known.integers[own], known.scales[own] = codes[place[:, 0], last], steps[place[:, 0], last]
    return before, after


def _nearest_planes(
    lower: Float64s, upper: npt.NDArray[np.float32], best: Float64s, trial: Float64s, grid: CodeGrid
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return integers for several channels and scales at once, from the last input to the first, and errors.

    All is float32: its rounding is far below that to integers, and what is chosen is improved by exact sums.

    Shapes:
        lower, upper: (K, K), its transpose; best: (C, K); trial: (C, F, B); the result (K, C, F) and (C, F).
    """
    (channels, tried, blocks), size = trial.shape, best.shape[1]
    scales = np.ascontiguousarray(trial.reshape(-1, blocks).T, np.float32)
    columns = channels * tried
    low, high, most = grid.limits.astype(np.float32)
    inverses = np.float32(1.0) / scales
    lows, highs = (np.full(columns, end, np.float32) for end in (low, high))
    candidates = CodeCandidates(grid.block, grid.partners, scales, inverses, lows, highs, most)
    codes, missed = np.empty((2, size, columns), np.float32)
    found = Tried(codes, missed, np.zeros(columns, np.float32))
    wanted = best.T.astype(np.float32)
    for start in range((size - 1) // _PANEL * _PANEL, -1, -_PANEL):
        own = slice(start, min(start + _PANEL, size))
        lost = multiplied_floats(upper[own, own.stop :], found.missed[own.stop :])
        corner, spread = lower[own, own].astype(np.float32), np.repeat(wanted[own], tried, axis=1)
        choose_panel(corner, start, spread, lost, candidates, found)
    return found.codes.reshape(size, channels, tried), found.errors.reshape(channels, tried)


def _trial(best: Float64s, scales: Float64s, least: Float64s, grid: CodeGrid) -> Float64s:
    """Return the scales that are tried for each channel, (C, F, B), as the file can hold them."""
    shares = _shares(grid.highest, best.shape[1]) if grid.free else np.ones(1)
    wanted = np.maximum(shares[:, None] * _base(best, scales, grid)[:, None], least[:, None, None])
    return wanted.astype(np.float32).astype(np.float64)


def _starts(highest: int, size: int, channels: int) -> int:
    if channels * size**2 > MUCH or size > _LARGE:
        return 1
    return STARTS_OF_BYTES if highest >= LARGEST_CODE else STARTS


def products_each(highest: int, size: int, channels: int) -> float:
    """Return the products of a search with free scales, as a multiple of channels times the inputs' square.

    Each scale takes a triangle of them, each start and what is there a square, and improving about another.

    Example:
        >>> products_each(127, 576, 64), products_each(7, 576, 64)
        (8.0, 20.5)
    """
    return len(_shares(highest, size)) / 2 + _starts(highest, size, channels) + 2


def _shares(highest: int, size: int) -> Float64s:
    """Return the scales that are tried, as shares of the one that clips no weight, which is one of them."""
    least = max(_SMALLEST_SCALE, 1.0 - _CLIPPED / (highest + 1))
    apart = FAR_APART if size > _LARGE else APART
    first, last = -round((1.0 - least) / apart), round((LARGEST_SCALE - 1.0) / apart)
    return 1.0 + apart * np.arange(first, last + 1, dtype=np.float64)


def _base(best: Float64s, scales: Float64s, grid: CodeGrid) -> Float64s:
    """Return the scale of each block with which the largest integer stands for its largest weight."""
    # A pair whose integers may add up to less than twice the largest one takes as much as its sum needs.
    if not grid.free:
        return scales.copy()
    largest = np.zeros(scales.shape)
    for channel in range(len(best)):
        np.maximum.at(largest[channel], grid.block, np.abs(best[channel]))
    for partner in grid.partners.T:
        other = np.where(partner >= 0, best[:, partner], 0.0)
        sums = np.where(best * other > 0.0, np.abs(best + other), 0.0).max(axis=1, keepdims=True, initial=0.0)
        largest = np.maximum(largest, sums * (grid.highest / grid.most))
    return np.where(largest > 0.0, largest / grid.highest, scales)
