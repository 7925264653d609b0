"""The integers and scales whose products are nearest to the best real weights, as the inputs weigh them."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ptq_cli.core.compiled import compiled
from ptq_cli.recover.second_moments import Float64s, Int64s, Quadratic
from ptq_cli.runtime.products import multiplied_floats

# The loops of the search for integers and scales, each over the channels or the inputs of a layer.
#
# They are compiled by numba and add in a fixed order, and products of matrices are those of one thread, so
# the number of threads changes no bit of the result.


Float32s = npt.NDArray[np.float32]
FEW = 9
"""Inputs of which every choice between the next lower and the next higher integer is tried: 2^9."""
MOST_SWEEPS = 100
"""Over the integers of a channel. It ends where none changes, which takes fewer than ten."""
PANEL = 64
"""Inputs to which the errors of those behind them are taken by one product."""
TIE = 1e-12
"""Of what a change by one step costs: a smaller gain is rounding, and would go back and forth."""


def nearest_planes(
    lower: Float64s,
    upper: Float32s,
    best: Float64s,
    trial: Float64s,
    grid: "CodeGrid",
) -> tuple[Float32s, Float32s]:
    """Return integers for several channels and scales at once, from the last input to the first, and errors.

    All is float32: its rounding is far below that to integers, and what is chosen is improved by exact sums.

    Shapes:
        lower, upper: (K, K), its transpose; best: (C, K); trial: (C, F, B); the result (K, C, F) and (C, F).
    """
    (channels, tried, blocks), size = trial.shape, best.shape[1]
    steps = np.ascontiguousarray(trial.reshape(-1, blocks).T, np.float32)
    codes, missed = (np.empty((size, channels * tried), np.float32) for _ in range(2))
    errors, ends = np.zeros(channels * tried, np.float32), grid.ends.astype(np.float32)
    wanted = best.T.astype(np.float32)
    for start in range((size - 1) // PANEL * PANEL, -1, -PANEL):
        own = slice(start, min(start + PANEL, size))
        lost = multiplied_floats(upper[own, own.stop :], missed[own.stop :])
        corner, spread = lower[own, own].astype(np.float32), np.repeat(wanted[own], tried, axis=1)
        choose_panel(
            corner,
            start,
            spread,
            steps,
            1 / steps,
            grid.block,
            ends,
            _mates(grid),
            codes,
            lost,
            missed,
            errors,
        )
    return codes.reshape(size, channels, tried), errors.reshape(channels, tried)


@compiled
def choose_panel(
    lower: Float32s,
    start: int,
    wanted: Float32s,
    steps: Float32s,
    inverses: Float32s,
    block: Int64s,
    ends: Float32s,
    mates: Int64s,
    codes: Float32s,
    lost: Float32s,
    missed: Float32s,
    errors: Float32s,
) -> None:  # pragma: no cover - compiled
    """Choose the integers of the inputs of a panel, the first of which is ``start``.

    Shapes:
        lower: (P, P); wanted, lost: (P, C * F); steps, inverses: (B, C * F); codes, missed: (K, C * F).
    """
    columns, low, high = errors.shape[0], ends[0], ends[1]
    for i in range(lower.shape[0] - 1, -1, -1):
        pivot, best, sums = lower[i, i], wanted[i], lost[i]
        step, inverse = steps[block[start + i]], inverses[block[start + i]]
        own, left = codes[start + i], missed[start + i]
        shift = np.float32(1.0) / pivot
        # No division, min or max in loops over columns: compilers make vectors of these.
        for f in range(columns):
            code = np.rint((best[f] + sums[f] * shift) * inverse[f])
            code = low if code < low else code
            own[f] = high if code > high else code
        for m in mates[start + i]:
            if m > start + i:  # Those before it are not chosen yet, and will look at this one.
                mate = codes[m]
                for f in range(columns):
                    own[f] = beside(own[f], mate[f], ends[2])
        for f in range(columns):
            left[f] = best[f] - step[f] * own[f]
            rest = pivot * left[f] + sums[f]
            errors[f] += rest * rest
        for j in range(i):
            factor, other = lower[i, j], lost[j]
            for f in range(columns):
                other[f] += factor * left[f]


@compiled
def beside(code: float, mate: float, most: float) -> float:  # pragma: no cover - compiled
    """Return the integer nearest to ``code`` whose sum with its mate is allowed, if both have one sign."""
    if mate > 0.0:
        return min(code, most - mate)
    if mate < 0.0:
        return max(code, -most - mate)
    return code


@compiled
def all_fit(codes: Float64s, mates: Int64s, most: float) -> bool:  # pragma: no cover - compiled
    """Return whether no two mates exceed what they may add up to."""
    for i in range(codes.shape[0]):
        for m in mates[i]:
            if m > i and codes[i] * codes[m] > 0.0 and abs(codes[i] + codes[m]) > most:
                return False
    return True


@compiled
def try_one(
    curvature: Float64s,
    best: Float64s,
    scale: float,
    ends: Float64s,
    mates: Int64s,
    codes: Float64s,
    residual: Float64s,
) -> None:  # pragma: no cover - compiled
    """Replace the codes of few inputs by the best choice of next lower and next higher integers.

    Where mates allow none of these choices, the codes stay.
    """
    size = codes.shape[0]
    low = np.empty(size)
    up = np.zeros(size, np.int64)
    trial = np.empty(size)
    for i in range(size):
        low[i] = min(max(np.floor(best[i] / scale), ends[0]), ends[1] - 1.0)
    residual[:] = 0.0
    for i in range(size):
        for j in range(size):
            residual[j] += curvature[i, j] * (best[i] - scale * low[i])
    change, least, chosen = 0.0, np.inf, -1
    if all_fit(low, mates, ends[2]):
        least, chosen = 0.0, 0
    # In the order of a Gray code, so that one integer changes at a time.
    for step in range(1, 1 << size):
        i = 0
        while not (step >> i) & 1:
            i += 1
        delta = -scale if up[i] == 0 else scale
        change += 2.0 * delta * residual[i] + delta * delta * curvature[i, i]
        for j in range(size):
            residual[j] += delta * curvature[i, j]
        up[i] = 1 - up[i]
        if change < least:
            trial[:] = low + up
            if all_fit(trial, mates, ends[2]):
                least, chosen = change, step
    if chosen < 0:
        return
    gray = chosen ^ (chosen >> 1)
    for i in range(size):
        codes[i] = low[i] + ((gray >> i) & 1)


@compiled
def try_all(
    curvature: Float64s, best: Float64s, steps: Float64s, ends: Float64s, mates: Int64s, codes: Float64s
) -> None:  # pragma: no cover - compiled
    """Replace the codes of few inputs as ``try_one`` does, for each channel and each of its scales.

    Shapes:
        best: (C, K); steps: (C, any, 1); codes: (C, S, K).
    """
    residual = np.empty(codes.shape[2])
    for c in range(codes.shape[0]):
        for s in range(codes.shape[1]):
            try_one(curvature, best[c], steps[c, s, 0], ends, mates, codes[c, s], residual)


@compiled
def improve(
    curvature: Float64s,
    best: Float64s,
    pull: Float64s,
    block: Int64s,
    members: Int64s,
    ends: Float64s,
    mates: Int64s,
    refits: int,
    least: Float64s,
    codes: Float64s,
    scales: Float64s,
    residual: Float64s,
) -> Float64s:  # pragma: no cover - compiled
    """Improve codes and scales in place; return the objectives, at local optima of single changes.

    ``residual`` is what the codes miss times the curvature, and stays that.

    Shapes:
        best, pull, codes, residual: (R, K), several rows for a channel; scales: (R, B); least and the result:
        (R,).
    """
    running, product = np.ones(codes.shape[0], np.bool_), np.empty(codes.shape[1])
    descend(curvature, block, ends, mates, codes, scales, residual, running.copy())
    for _ in range(refits):
        for row in range(codes.shape[0]):
            running[row] = running[row] and refit(
                curvature, pull[row], members, least[row], codes[row], scales[row], residual[row], product
            )
        descend(curvature, block, ends, mates, codes, scales, residual, running.copy())
    errors = np.zeros(codes.shape[0])
    for row in range(codes.shape[0]):
        for i in range(codes.shape[1]):
            errors[row] += residual[row, i] * (best[row, i] - scales[row, block[i]] * codes[row, i])
    return errors


@compiled
def refit(
    curvature: Float64s,
    pull: Float64s,
    members: Int64s,
    least: float,
    codes: Float64s,
    scale: Float64s,
    residual: Float64s,
    product: Float64s,
) -> bool:  # pragma: no cover - compiled
    """Give each block the scale that is best for its integers; return whether one changed."""
    size, changed = codes.shape[0], False
    for b in range(members.shape[0]):
        if members.shape[0] == 1:
            for j in range(size):
                product[j] = (pull[j] - residual[j]) / scale[0]
        else:
            product[:] = 0.0
            for i in members[b]:
                if codes[i] != 0.0:
                    for j in range(size):
                        product[j] += codes[i] * curvature[i, j]
        slope, bend = 0.0, 0.0
        for i in members[b]:
            slope += codes[i] * residual[i]
            bend += codes[i] * product[i]
        if bend <= 0.0:
            continue
        wanted = max(scale[b] + slope / bend, least)
        wanted = np.float64(np.float32(wanted))
        if wanted <= 0.0 or wanted == scale[b]:
            continue
        for j in range(size):
            residual[j] -= (wanted - scale[b]) * product[j]
        scale[b] = wanted
        changed = True
    return changed


@compiled
def descend(
    curvature: Float64s,
    block: Int64s,
    ends: Float64s,
    mates: Int64s,
    codes: Float64s,
    scales: Float64s,
    residual: Float64s,
    running: npt.NDArray[np.bool_],
) -> None:  # pragma: no cover - compiled
    """Change one integer at a time of each running row to its best value, until none changes.

    All rows are at the same input, so that what is read of a large curvature serves them all.
    """
    rows, size = codes.shape
    for _ in range(MOST_SWEEPS):
        changed = np.zeros(rows, np.bool_)
        for i in range(size):
            bend = curvature[i, i]
            for row in range(rows):
                if not running[row]:
                    continue
                step = scales[row, block[i]]
                if abs(residual[row, i]) <= 0.5 * step * bend:  # It would be rounded to what it is.
                    continue
                wanted = codes[row, i] + np.rint(residual[row, i] / (step * bend))
                wanted = min(max(wanted, ends[0]), ends[1])
                for m in mates[i]:
                    if m >= 0:
                        wanted = beside(wanted, codes[row, m], ends[2])
                delta = step * (wanted - codes[row, i])
                gain = 2.0 * delta * residual[row, i] - delta * delta * bend
                if gain <= TIE * bend * step * step:
                    continue
                codes[row, i] = wanted
                changed[row] = True
                for j in range(size):
                    residual[row, j] -= delta * curvature[i, j]
        running[:] = changed
        if not np.any(changed):
            return


SMALLEST_SCALE, LARGEST_SCALE = 0.4, 1.1
"""Of the one with which the largest integer stands for the largest weight."""
CLIPPED = 4.0
"""By so many integers the smallest scale that is tried clips the largest weight. Of 4,000 channels none was
best with a smaller one: of 4 bits below 0.55, of 8 below 0.97."""
APART, FAR_APART = 0.02, 0.06
"""How far scales are from each other, and those of a large layer."""
STARTS, STARTS_OF_BYTES = 3, 2
"""Scales whose integers are improved one by one. More of them gain less than 0.02 dB."""
REFITS = 3
LARGE = 1200
"""Above so many inputs the time grows faster than what the further scales are worth."""
MUCH = 1e8
"""Channels times the square of the inputs: above it, too, there is one start. A second one takes 0.4 times as
long again, and gains 0.01 dB."""
BYTE = 127
CHANNELS_AT_ONCE = 32


@dataclass(frozen=True, eq=False, kw_only=True)
class Codes:
    """The integers of a layer's weights, and their scales.

    Attributes:
        integers: less the zero points; float64 while they are searched.
        scales: one for each block of inputs; a layer without blocks has one block.
        zeros: the zero points of blocks; None where all are 0.

    Shapes:
        integers: (M, K); scales, zeros: (M, B).
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
        """Return those of some channels."""
        zeros = self.zeros[own] if self.zeros is not None else None
        return Codes(integers=self.integers[own], scales=self.scales[own], zeros=zeros)

    def weights(self, block: Int64s) -> npt.NDArray[Any]:
        """Return the real weights, (M, K), by the block of each input, (K,)."""
        found: npt.NDArray[Any] = self.integers * self.scales[:, block]
        return found


def joined(parts: Sequence[Codes]) -> Codes:
    """Return the codes of the channels of several parts, in their order."""
    integers, scales, zeros = (
        np.concatenate(items) for items in zip(*(part.arrays for part in parts), strict=True)
    )
    return Codes(integers=integers, scales=scales, zeros=zeros)


@dataclass(frozen=True, eq=False, kw_only=True)
class CodeGrid:
    """What integers and scales are allowed.

    Attributes:
        lowest, highest: integers.
        block: the block of each input.
        least: the smallest scale of each channel.
        free: scales are searched; otherwise those that the weights have are kept.
        mates: with which other inputs each one is a pair; -1 for none.
        most: what the integers of two mates of one sign may add up to.

    Shapes:
        block: (K,); least: (M,); mates: (K, any).
    """

    lowest: int
    highest: int
    block: Int64s
    least: Float64s
    free: bool = True
    mates: Int64s | None = None
    most: float = np.inf

    @property
    def ends(self) -> Float64s:
        """The lowest and highest integer, and the most that mates of one sign add up to."""
        return np.array([self.lowest, self.highest, self.most], np.float64)

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
    What is found is never worse than what is given.

    Threads share the channels, which do not depend on each other: the result is the same.

    Shapes:
        the objectives (M,).

    Edge case:
        A channel whose weights are all 0 stays as it is.

    Source:
        Babai, On Lovász' lattice reduction and the nearest lattice point problem (1986); Frantar et al., GPTQ
        (2023); Nair and Suggala, CDQuant (2024), for coordinate descent.
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
    quadratic: Quadratic, upper: Float32s, grid: CodeGrid, known: Codes, own: Int64s
) -> tuple[Float64s, Float64s]:
    """Replace integers and scales of some channels by better ones; return objectives before and after."""
    best, pull, least = quadratic.best[own], quadratic.pull[own], grid.least[own]
    integers, scales = known.integers[own], known.scales[own]
    (channels, size), blocks = best.shape, scales.shape[1]
    starts, refits = (_starts(grid.highest, size, len(known.integers)), REFITS) if grid.free else (1, 0)
    trial = _trial(best, scales, least, grid)
    tried, rough = nearest_planes(quadratic.lower, upper, best, trial, grid)
    chosen = np.argsort(rough, axis=1, kind="stable")[:, :starts]
    # Of each channel the best starts, and in the last place what is there.
    place = np.arange(channels)[:, None]
    steps = np.concatenate([trial[place, chosen], scales[:, None]], axis=1)
    codes = np.concatenate([np.moveaxis(tried, 0, 2)[place, chosen], integers[:, None]], axis=1)
    if size <= FEW and blocks == 1:
        try_all(quadratic.curvature, best, steps, grid.ends, _mates(grid), codes[:, :-1])
    missed = best[:, None] - steps[:, :, grid.block] * codes
    residual = multiplied_floats(missed.reshape(-1, size), quadratic.curvature).reshape(missed.shape)
    before = (missed[:, -1] * residual[:, -1]).sum(axis=1)

    def improved(rows: tuple[Any, Any]) -> Float64s:
        """Improve some starts of some channels, and return their objectives."""
        parts = codes[rows], steps[rows], residual[rows]
        error: Float64s = improve(
            quadratic.curvature, best[rows[0]], pull[rows[0]], grid.block, _members(grid.block, blocks),
            grid.ends, _mates(grid), refits, least[rows[0]], *parts,
        )  # fmt: skip
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


def _trial(best: Float64s, scales: Float64s, least: Float64s, grid: CodeGrid) -> Float64s:
    """Return the scales that are tried for each channel, (C, F, B), as the file can hold them."""
    shares = _shares(grid.highest, best.shape[1]) if grid.free else np.ones(1)
    wanted = np.maximum(shares[:, None] * _base(best, scales, grid)[:, None], least[:, None, None])
    return wanted.astype(np.float32).astype(np.float64)


def _starts(highest: int, size: int, channels: int) -> int:
    if channels * size**2 > MUCH or size > LARGE:
        return 1
    return STARTS_OF_BYTES if highest >= BYTE else STARTS


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
    least = max(SMALLEST_SCALE, 1.0 - CLIPPED / (highest + 1))
    apart = FAR_APART if size > LARGE else APART
    first, last = -round((1.0 - least) / apart), round((LARGEST_SCALE - 1.0) / apart)
    return 1.0 + apart * np.arange(first, last + 1, dtype=np.float64)


def _base(best: Float64s, scales: Float64s, grid: CodeGrid) -> Float64s:
    """Return the scale of each block with which the largest integer stands for its largest weight.

    Two mates whose integers may add up to less than twice the largest one take as much as their sum needs.
    """
    if not grid.free:
        return scales.copy()
    largest = np.zeros(scales.shape)
    for channel in range(len(best)):
        np.maximum.at(largest[channel], grid.block, np.abs(best[channel]))
    for mate in grid.mates.T if grid.mates is not None else ():
        other = np.where(mate >= 0, best[:, mate], 0.0)
        sums = np.where(best * other > 0.0, np.abs(best + other), 0.0).max(axis=1, keepdims=True, initial=0.0)
        largest = np.maximum(largest, sums * (grid.highest / grid.most))
    return np.where(largest > 0.0, largest / grid.highest, scales)


def _mates(grid: CodeGrid) -> Int64s:
    return grid.mates if grid.mates is not None else np.empty((len(grid.block), 0), np.int64)


def _members(block: Int64s, blocks: int) -> Int64s:
    """Return the inputs of each block, (B, K / B); all blocks have as many."""
    order: Int64s = np.argsort(block, kind="stable").astype(np.int64)
    return order.reshape(blocks, -1)
