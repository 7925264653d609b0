"""The integers and scales whose products are nearest to the best real weights, as the inputs weigh them."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ptq_cli.collectors.host_kernels import compiled
from ptq_cli.recovery.second_moments import Float64s, Int64s, Quadratic, add_products

# The loops of the search for integers and scales, each over the channels or the inputs of a layer.
#
# They are compiled by numba and add in a fixed order, so the number of threads changes no bit of the
# result.


FEW = 9
"""Inputs of which every choice between the next lower and the next higher integer is tried: 2^9."""
MOST_SWEEPS = 100
"""Over the integers of a channel. It ends where none changes, which takes fewer than ten."""
PANEL, TILE = 16, 64
"""Inputs whose errors are taken to others together, and to how many: four divides the first."""
TIE = 1e-12
"""Of what a change by one step costs: a smaller gain is rounding, and would go back and forth."""


@compiled
def search_channels(
    curvature: Float64s,
    lower: Float64s,
    best: Float64s,
    pull: Float64s,
    trial: Float64s,
    least: Float64s,
    block: Int64s,
    members: Int64s,
    ends: Float64s,
    mates: Int64s,
    starts: int,
    refits: int,
    fit_all: bool,
    integers: Float64s,
    scales: Float64s,
) -> None:  # pragma: no cover - compiled
    """Replace the integers and scales of some channels by the best that are found, if they are better.

    Scales are fitted again for every start, or where that takes too long for the best one alone.

    Shapes:
        best, pull, integers: (C, K); scales: (C, B); trial: (C, F, B), scales to try; least: (C,); mates:
        (K, any), with -1 for none; ends: the lowest and highest integer, and the most that mates of one sign
        add up to.
    """
    (channels, tried, blocks), size = trial.shape, best.shape[1]
    found, errors = np.empty((size, channels, tried)), np.empty((channels, tried))
    nearest_plane(lower, best, trial, block, ends, mates, found, errors)
    # Of each channel the best starts, and in the last place what is there.
    codes = np.empty((channels, starts + 1, size))
    steps = np.empty((channels, starts + 1, blocks))
    missed = np.empty((channels * (starts + 1), size))
    residuals = np.zeros(missed.shape)
    for channel in range(channels):
        codes[channel, starts], steps[channel, starts] = integers[channel], scales[channel]
        for s in range(starts):
            f = int(np.argmin(errors[channel]))
            errors[channel, f] = np.inf
            codes[channel, s], steps[channel, s] = found[:, channel, f], trial[channel, f]
            if size <= FEW and blocks == 1:
                try_all(
                    curvature, best[channel], trial[channel, f, 0], ends, mates, codes[channel, s],
                    missed[0],
                )  # fmt: skip
    for row in range(missed.shape[0]):
        channel, s = row // (starts + 1), row % (starts + 1)
        for i in range(size):
            missed[row, i] = best[channel, i] - steps[channel, s, block[i]] * codes[channel, s, i]
    add_products(curvature, missed, residuals)
    product = np.empty(size)
    for channel in range(channels):
        if not np.any(integers[channel] != 0.0):
            continue
        at, chosen, lowest = channel * (starts + 1), starts, np.inf
        for s in range(starts):
            error = improve(
                curvature, best[channel], pull[channel], block, members, ends, mates,
                refits if fit_all else 0, least[channel], codes[channel, s], steps[channel, s],
                residuals[at + s], product,
            )  # fmt: skip
            if error < lowest:
                chosen, lowest = s, error
        # What is there is a start of its own only where nothing better was found.
        is_found = lowest < np.sum(missed[at + starts] * residuals[at + starts])
        chosen = chosen if is_found else starts
        if not (fit_all and is_found):
            improve(
                curvature, best[channel], pull[channel], block, members, ends, mates, refits,
                least[channel], codes[channel, chosen], steps[channel, chosen], residuals[at + chosen],
                product,
            )  # fmt: skip
        integers[channel], scales[channel] = codes[channel, chosen], steps[channel, chosen]


@compiled
def nearest_plane(
    lower: Float64s,
    best: Float64s,
    trial: Float64s,
    block: Int64s,
    ends: Float64s,
    mates: Int64s,
    codes: Float64s,
    errors: Float64s,
) -> None:  # pragma: no cover - compiled
    """Find integers for several channels and scales at once, from the last input to the first.

    What the chosen ones miss is taken to the inputs before them in panels, tile by tile of a size that a
    cache holds.

    Shapes:
        best: (C, K); trial: (C, F, B); codes: (K, C, F); errors: (C, F).
    """
    size, channels, tried = codes.shape
    columns = channels * tried
    lost = np.zeros((size, columns))
    missed = np.zeros((PANEL, columns))
    errors[:] = 0.0
    for last in range(size - 1, -1, -PANEL):
        first = max(last - PANEL + 1, 0)
        for i in range(last, first - 1, -1):
            own = missed[last - i]
            for c in range(channels):
                part = slice(c * tried, (c + 1) * tried)
                choose(
                    lower[i, i], best[c, i], trial[c, :, block[i]], i, ends, mates, codes[:, c],
                    lost[i, part], own[part], errors[c],
                )  # fmt: skip
            for j in range(first, i):
                factor, row = lower[i, j], lost[j]
                for f in range(columns):
                    row[f] += factor * own[f]
        for left in range(0, first, TILE):  # All panels are whole but the last, which has none before it.
            for k in range(0, PANEL, 4):
                one, two, three, four = missed[k], missed[k + 1], missed[k + 2], missed[k + 3]
                i = last - k
                for j in range(left, min(left + TILE, first)):
                    w, x, y, z = lower[i, j], lower[i - 1, j], lower[i - 2, j], lower[i - 3, j]
                    row = lost[j]
                    for f in range(columns):
                        row[f] = (((row[f] + w * one[f]) + x * two[f]) + y * three[f]) + z * four[f]


@compiled
def choose(
    pivot: float,
    best: float,
    steps: Float64s,
    i: int,
    ends: Float64s,
    mates: Int64s,
    codes: Float64s,
    lost: Float64s,
    missed: Float64s,
    errors: Float64s,
) -> None:  # pragma: no cover - compiled
    """Choose the integer of input ``i`` of one channel for each scale.

    Shapes:
        steps, lost, missed, errors: (F,); codes: (K, F).
    """
    shift = 1.0 / pivot
    own = codes[i]
    for f in range(steps.shape[0]):
        own[f] = min(max(np.rint((best + lost[f] * shift) / steps[f]), ends[0]), ends[1])
    for m in mates[i]:
        if m > i:  # Those before it are not chosen yet, and will look at this one.
            for f in range(steps.shape[0]):
                own[f] = beside(own[f], codes[m, f], ends[2])
    for f in range(steps.shape[0]):
        missed[f] = best - steps[f] * own[f]
        rest = pivot * missed[f] + lost[f]
        errors[f] += rest * rest


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
def try_all(
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
def improve(
    curvature: Float64s,
    best: Float64s,
    pull: Float64s,
    block: Int64s,
    members: Int64s,
    ends: Float64s,
    mates: Int64s,
    refits: int,
    least: float,
    codes: Float64s,
    scale: Float64s,
    residual: Float64s,
    product: Float64s,
) -> float:  # pragma: no cover - compiled
    """Improve codes and scale in place; return the objective, at a local optimum of single changes.

    ``residual`` is what the codes miss times the curvature, and stays that.
    """
    size = codes.shape[0]
    descend(curvature, block, ends, mates, codes, scale, residual)
    for _ in range(refits):
        if not refit(curvature, pull, members, least, codes, scale, residual, product):
            break
        descend(curvature, block, ends, mates, codes, scale, residual)
    error = 0.0
    for i in range(size):
        error += residual[i] * (best[i] - scale[block[i]] * codes[i])
    return error


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
    scale: Float64s,
    residual: Float64s,
) -> None:  # pragma: no cover - compiled
    """Change one integer at a time to its best value, until none changes."""
    size = codes.shape[0]
    for _ in range(MOST_SWEEPS):
        changed = False
        for i in range(size):
            step = scale[block[i]]
            wanted = codes[i] + np.rint(residual[i] / (step * curvature[i, i]))
            wanted = min(max(wanted, ends[0]), ends[1])
            for m in mates[i]:
                if m >= 0:
                    wanted = beside(wanted, codes[m], ends[2])
            delta = step * (wanted - codes[i])
            gain = 2.0 * delta * residual[i] - delta * delta * curvature[i, i]
            if gain <= TIE * curvature[i, i] * step * step:
                continue
            codes[i] = wanted
            changed = True
            for j in range(size):
                residual[j] -= delta * curvature[i, j]
        if not changed:
            return


SMALLEST_SCALE, LARGEST_SCALE = 0.4, 1.1
"""Of the one with which the largest integer stands for the largest weight."""
CLIPPED = 4.0
"""By so many integers the smallest scale that is tried clips the largest weight. Of 4,000 channels none was
best with a smaller one: of 4 bits below 0.55, of 8 below 0.97."""
APART, FAR_APART = 0.02, 0.06
"""How far scales are from each other, and those of a large layer."""
STARTS, STARTS_OF_BYTES = 6, 2
"""Scales whose integers are improved one by one. With 8 bits more of them gain less than 0.02 dB."""
REFITS = 3
LARGE = 1200
"""Above so many inputs the time grows faster than what the further scales are worth."""
MUCH, FEWER_STARTS = 1e8, 2
"""Channels times the square of the inputs: above it, too, there are fewer starts, and only the scales of the
best one are fitted again. That takes 0.4 times as long, and loses 0.1 dB of three at 4 bits."""
BYTE = 127
CHANNELS_AT_ONCE = 16


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
    scales: Float64s
    zeros: Float64s | None = None

    @property
    def arrays(self) -> tuple[npt.NDArray[Any], Float64s, Float64s]:
        """Integers, scales and zero points."""
        zeros = self.zeros if self.zeros is not None else np.zeros(self.scales.shape)
        return self.integers, self.scales, zeros

    def part(self, own: slice) -> "Codes":
        """Return those of some channels."""
        zeros = self.zeros[own] if self.zeros is not None else None
        return Codes(integers=self.integers[own], scales=self.scales[own], zeros=zeros)

    def weights(self, block: Int64s) -> Float64s:
        """Return the real weights, (M, K), by the block of each input, (K,)."""
        found: Float64s = self.integers * self.scales[:, block]
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
    def has_zeros(self) -> bool:
        """Whether blocks have zero points, which are one of the integers."""
        return self.lowest == 0


def search_codes(quadratic: Quadratic, grid: CodeGrid, nearest: Codes, *, threads: int = 1) -> Codes:
    """Return integers and scales that minimize the objective; never worse than those that are given.

    For each channel several scales are tried. At each, integers are found one after the other, each making up
    for what the earlier ones have lost (Babai's nearest plane); of few inputs, by trying all. The best are
    improved integer by integer until none can be changed alone, and the scale is fitted again, three times.

    Threads share the channels, which do not depend on each other: the result is the same.

    Edge case:
        A channel whose weights are all 0 stays as it is.

    Source:
        Babai, On Lovász' lattice reduction and the nearest lattice point problem (1986); Frantar et al., GPTQ
        (2023); Nair and Suggala, CDQuant (2024), for coordinate descent.
    """
    channels, size = nearest.integers.shape
    integers, scales = nearest.integers.copy(), nearest.scales.copy()
    blocks = scales.shape[1]
    members = _members(grid.block, blocks)
    mates = grid.mates if grid.mates is not None else np.empty((size, 0), np.int64)
    is_much = channels * size**2 > MUCH
    starts = _starts(grid.highest, size, is_much=is_much)

    def part(first: int) -> None:
        own = slice(first, first + CHANNELS_AT_ONCE)
        search_channels(
            quadratic.curvature,
            quadratic.lower,
            quadratic.best[own],
            quadratic.pull[own],
            _trial(quadratic.best[own], scales[own], grid.least[own], grid),
            grid.least[own],
            grid.block,
            members,
            np.array([grid.lowest, grid.highest, grid.most], np.float64),
            mates,
            starts if grid.free else 1,
            REFITS if grid.free else 0,
            not is_much,
            integers[own],
            scales[own],
        )

    firsts = range(0, channels, CHANNELS_AT_ONCE)
    if len(firsts) == 1:
        part(0)
    else:
        with ThreadPoolExecutor(threads, "search") as pool:
            list(pool.map(part, firsts))
    return Codes(integers=integers, scales=scales)


def _trial(best: Float64s, scales: Float64s, least: Float64s, grid: CodeGrid) -> Float64s:
    """Return the scales that are tried for each channel, (C, F, B), as the file can hold them."""
    shares = _shares(grid.highest, best.shape[1]) if grid.free else np.ones(1)
    wanted = np.maximum(shares[:, None] * _base(best, scales, grid)[:, None], least[:, None, None])
    return wanted.astype(np.float32).astype(np.float64)


def _starts(highest: int, size: int, *, is_much: bool) -> int:
    starts = STARTS_OF_BYTES if highest >= BYTE else STARTS
    return min(starts, FEWER_STARTS) if is_much or size > LARGE else starts


def products_each(highest: int, size: int, channels: int) -> float:
    """Return the products of a search with free scales, as a multiple of channels times the inputs' square.

    Each scale takes a triangle of them, each start and what is there a square, and improving about another.

    Example:
        >>> products_each(127, 576, 64), products_each(7, 576, 64)
        (8.0, 23.5)
    """
    starts = _starts(highest, size, is_much=channels * size**2 > MUCH)
    return len(_shares(highest, size)) / 2 + starts + 2


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


def _members(block: Int64s, blocks: int) -> Int64s:
    """Return the inputs of each block, (B, K / B); all blocks have as many."""
    order: Int64s = np.argsort(block, kind="stable").astype(np.int64)
    return order.reshape(blocks, -1)
