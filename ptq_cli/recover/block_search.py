"""Integers of weights whose blocks of inputs have scales of their own, for many channels at once.

A scale and the integers of a block are chosen together. What the block has lost is passed on to all others by
one product of matrices, so that a layer takes about four products of its weight and the moments.

All of it is float32: the errors that are weighed against each other are those of few bits, a thousand times
as large as its rounding. Moments and factors, which small differences decide, are float64 until then.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from ptq_cli.core.compiled import compiled
from ptq_cli.recover.code_search import CodeGrid, Codes
from ptq_cli.recover.second_moments import Float64s
from ptq_cli.runtime.products import multiplied_floats

FACTORS = np.linspace(0.55, 1.15, 16)
"""Scales that are tried, of the one with which the largest integer stands for the largest weight."""
WIDTHS = np.linspace(0.65, 1.1, 8)
"""With zero points: of the scale with which the integers reach from the smallest weight to the largest."""
POINTS = 3
"""Zero points that are tried with each: the nearest one and its neighbors."""
SWEEPS = 2
"""Over all blocks, once each has integers; a third one gained less than 0.02 dB."""
REFITS = 2
"""Of a block's scale in each sweep."""
MOST_MOVES = 2
"""Changes of integers of a block in a row, for each of its inputs; it ends where none gains."""
TIE = 1e-5
"""Of what a change by one step costs: a smaller gain is rounding of float32, and would go back and forth."""
ROWS = 512
"""Output channels that are multiplied at once; threads share them."""
TOGETHER = 16
"""Channels whose candidates are tried at once: what they take fits the second-level cache."""
Floats = npt.NDArray[np.float32]


def search_blocks(
    curvature: Float64s,
    lower: Float64s,
    best: Float64s,
    grid: CodeGrid,
    nearest: Codes,
    *,
    threads: int = 1,
) -> tuple[Codes, Float64s, Float64s]:
    """Return integers and scales near to ``best``, and each channel's error with ``nearest`` and with these.

    From the last block to the first, several scales are tried for each channel, and integers are found one
    after the other (Babai's nearest plane). Then each block in turn is improved integer by integer, and its
    scale fitted again. A channel that gained nothing stays as it is.

    Shapes:
        curvature: A, (K, K), and lower its Cholesky factor; best: (M, K); the errors (M,).

    Source:
        Frantar et al., GPTQ (2023), for updates in blocks of columns.
    """
    bends, factor, wanted = (array.astype(np.float32) for array in (curvature, lower, best))
    found = Codes(
        integers=nearest.integers.copy(),
        scales=nearest.scales.copy(),
        zeros=nearest.zeros.copy() if nearest.zeros is not None else np.zeros(nearest.scales.shape),
    )
    before, after = np.empty(len(best)), np.empty(len(best))

    def part(first: int) -> None:
        own = slice(first, first + ROWS)
        lost = wanted[own] - nearest.part(own).weights(grid.block).astype(np.float32)
        before[own] = (multiplied_floats(lost, bends) * lost).sum(axis=1)
        made = _planes(factor, wanted[own], grid, grid.least[own])
        residual = multiplied_floats(wanted[own] - made.weights(grid.block), bends)
        _improve(bends, residual, grid, grid.least[own], made)
        lost = wanted[own] - made.weights(grid.block)
        after[own] = (residual * lost).sum(axis=1)
        better = after[own] < before[own]
        after[own] = np.minimum(after[own], before[own])
        for one, other in zip(found.arrays, made.arrays, strict=True):
            one[own][better] = other[better]

    with ThreadPoolExecutor(threads, "search") as pool:
        list(pool.map(part, range(0, len(best), ROWS)))
    return found, before, after


def _planes(lower: Floats, best: Floats, grid: CodeGrid, least: Float64s) -> Codes:
    """Return integers and scales of some channels, found block by block from the last one."""
    channels, size = best.shape
    blocks = int(grid.block[-1]) + 1
    each = size // blocks
    shapes = ((channels, size), (channels, blocks), (channels, blocks))
    integers, scales, zeros = (np.empty(shape, np.float32) for shape in shapes)
    lost, missed = np.zeros(best.shape, np.float32), np.empty((channels, each), np.float32)
    factors = (WIDTHS if grid.has_zeros else FACTORS).astype(np.float32)
    for block in reversed(range(blocks)):
        own = slice(block * each, (block + 1) * each)
        codes = np.empty((channels, each), np.float32)
        choose_block(
            lower[own, own].copy(),
            best[:, own].copy(),
            lost[:, own].copy(),
            _ends(grid),
            least.astype(np.float32),
            factors,
            codes,
            scales[:, block],
            zeros[:, block],
            missed,
        )
        integers[:, own] = codes
        if block:
            lost[:, : own.start] += multiplied_floats(missed, lower[own, : own.start])
    return Codes(integers=integers, scales=scales, zeros=zeros)


def _ends(grid: CodeGrid) -> Floats:
    return np.array([grid.lowest, grid.highest], np.float32)


def choose_block(
    lower: Floats,
    best: Floats,
    lost: Floats,
    ends: Floats,
    least: Floats,
    factors: Floats,
    codes: Floats,
    scales: Floats,
    zeros: Floats,
    missed: Floats,
) -> None:
    """Choose scale, zero point and integers of a block for each channel, and what they miss of the best.

    Shapes:
        lower: (S, S); best, lost, codes, missed: (C, S); least, scales, zeros: (C,).
    """
    tried = len(factors) * (POINTS if ends[0] == 0.0 else 1)
    columns = min(TOGETHER, len(best)) * tried
    trial, zero, errors = np.ones((3, columns), np.float32)
    wanted, sums, tries, left = np.zeros((4, best.shape[1], columns), np.float32)
    # Not one compiled function: what is inlined into another is no longer compiled to vectors.
    for start in range(0, len(best), TOGETHER):
        own = slice(start, start + TOGETHER)
        spread_candidates(best[own], lost[own], ends, least[own], factors, wanted, sums, trial, zero)
        choose_columns(lower, wanted, sums, trial, zero, ends, tries, left, errors)
        found = errors[: len(best[own]) * tried]
        take_best(found, tries, left, trial, zero, codes[own], missed[own], scales[own], zeros[own])


@compiled
def choose_columns(
    lower: Floats,
    wanted: Floats,
    sums: Floats,
    trial: Floats,
    zero: Floats,
    ends: Floats,
    codes: Floats,
    left: Floats,
    errors: Floats,
) -> None:  # pragma: no cover - compiled
    """Choose integers for each candidate, from the last input to the first (Babai's nearest plane).

    Shapes:
        lower: (S, S); wanted, sums, codes, left: (S, F); trial, zero, errors: (F,).
    """
    columns = errors.shape[0]
    inverse, lows, highs = np.empty((3, columns), np.float32)
    for f in range(columns):
        inverse[f], errors[f] = np.float32(1.0) / trial[f], 0.0
        lows[f], highs[f] = ends[0] - zero[f], ends[1] - zero[f]
    for i in range(lower.shape[0] - 1, -1, -1):
        pivot, own, aim, code, rest = lower[i, i], sums[i], wanted[i], codes[i], left[i]
        shift = np.float32(1.0) / pivot
        for f in range(columns):
            step, low, high = np.rint((aim[f] + own[f] * shift) * inverse[f]), lows[f], highs[f]
            step = low if step < low else step
            step = high if step > high else step
            code[f] = step
            rest[f] = aim[f] - trial[f] * step
            total = pivot * rest[f] + own[f]
            errors[f] += total * total
        for j in range(i):
            factor, other = lower[i, j], sums[j]
            for f in range(columns):
                other[f] += factor * rest[f]


@compiled
def spread_candidates(
    best: Floats,
    lost: Floats,
    ends: Floats,
    least: Floats,
    factors: Floats,
    wanted: Floats,
    sums: Floats,
    trial: Floats,
    zero: Floats,
) -> None:  # pragma: no cover - compiled
    """Write what is wanted of each candidate of some channels, and the scales and zero points that are tried.

    Shapes:
        best, lost: (C, S); least: (C,); wanted, sums: (S, any F of at least C times the candidates of each);
        trial, zero: (F,).
    """
    points = POINTS if ends[0] == 0.0 else 1
    tried = factors.shape[0] * points
    for channel in range(best.shape[0]):
        first = channel * tried
        low = high = np.float32(0.0)
        for i in range(best.shape[1]):
            aim, miss = best[channel, i], lost[channel, i]
            low, high = min(low, aim), max(high, aim)
            for f in range(first, first + tried):
                wanted[i, f], sums[i, f] = aim, miss
        width = high - low if points > 1 else max(-low, high)
        # The zero point of the whole range, and its neighbors.
        has_zeros = points > 1 and width > 0.0
        middle = np.rint(-low * ends[1] / width) if has_zeros else 0.0
        for f in range(tried):
            step = max(factors[f // points] * width / ends[1], least[channel])
            trial[first + f] = step if width > 0.0 and step > 0.0 else 1.0
            zero[first + f] = min(max(middle + f % points - 1.0, 0.0), ends[1]) if has_zeros else 0.0


@compiled
def take_best(
    errors: Floats,
    tries: Floats,
    left: Floats,
    trial: Floats,
    zero: Floats,
    codes: Floats,
    missed: Floats,
    scales: Floats,
    zeros: Floats,
) -> None:  # pragma: no cover - compiled
    """Take the candidate of each channel with the least error.

    Shapes:
        errors: (F,), those of each channel side by side; trial, zero: at least as many; tries, left: (S, as
        many); codes, missed: (C, S); scales, zeros: (C,).
    """
    tried = errors.shape[0] // codes.shape[0]
    for channel in range(codes.shape[0]):
        chosen = channel * tried + np.argmin(errors[channel * tried : (channel + 1) * tried])
        scales[channel], zeros[channel] = trial[chosen], zero[chosen]
        for i in range(codes.shape[1]):
            codes[channel, i], missed[channel, i] = tries[i, chosen], left[i, chosen]


def _improve(curvature: Floats, residual: Floats, grid: CodeGrid, least: Float64s, found: Codes) -> None:
    """Improve integers, scales and zero points in place, block by block; ``residual`` is kept up to date."""
    integers, scales, zeros = found.arrays
    each = residual.shape[1] // scales.shape[1]
    for _ in range(SWEEPS):
        for block in range(scales.shape[1]):
            own = slice(block * each, (block + 1) * each)
            codes, change = integers[:, own].copy(), np.empty((len(residual), each), np.float32)
            improve_block(
                curvature[own, own].copy(),
                residual[:, own].copy(),
                _ends(grid),
                least.astype(np.float32),
                codes,
                scales[:, block],
                zeros[:, block],
                change,
            )
            integers[:, own] = codes
            residual -= multiplied_floats(change, curvature[own])


@compiled
def improve_block(
    curvature: Floats,
    residual: Floats,
    ends: Floats,
    least: Floats,
    codes: Floats,
    scales: Floats,
    zeros: Floats,
    change: Floats,
) -> None:  # pragma: no cover - compiled
    """Improve integers, scale and zero point of a block for each channel, all other blocks as they are.

    Shapes:
        curvature: (S, S); residual: (C, S), the best weights' distance times the curvature; codes, change:
        (C, S), the change of the real weights; least, scales, zeros: (C,).
    """
    size = codes.shape[1]
    sums, bends, inverse, product, steps, gains = np.zeros((6, size), np.float32)
    for i in range(size):
        bends[i], inverse[i] = curvature[i, i], 1.0 / curvature[i, i]
        for j in range(size):
            sums[j] += curvature[i, j]
    for channel in range(codes.shape[0]):
        own, rest = codes[channel], residual[channel]
        scale, zero = scales[channel], zeros[channel]
        for i in range(size):
            change[channel, i] = -scale * own[i]
        for turn in range(REFITS + 1):
            if turn:
                scale = refit_block(curvature, own, scale, least[channel], rest, product)
            if ends[0] == 0.0:
                zero -= move_block(sums, own, scale, zero - ends[1], zero, rest)
            descend_block(
                curvature, bends, inverse, ends[0] - zero, ends[1] - zero, own, scale, rest, steps, gains
            )
        scales[channel], zeros[channel] = scale, zero
        for i in range(size):
            change[channel, i] += scale * own[i]


@compiled
def refit_block(
    curvature: Floats, codes: Floats, scale: np.float32, least: np.float32, residual: Floats, product: Floats
) -> np.float32:  # pragma: no cover - compiled
    """Return the scale that is best for the integers of a block, with the residual for it."""
    size = codes.shape[0]
    product[:] = 0.0
    for i in range(size):
        code = codes[i]
        for j in range(size):
            product[j] += code * curvature[i, j]
    pull = bend = np.float32(0.0)
    for i in range(size):
        pull += codes[i] * residual[i]
        bend += codes[i] * product[i]
    if bend <= 0.0:
        return scale
    wanted = scale + pull / bend
    wanted = least if wanted < least else wanted
    if wanted <= 0.0:
        return scale
    more = wanted - scale
    for i in range(size):
        residual[i] -= more * product[i]
    return wanted


@compiled
def move_block(
    sums: Floats, codes: Floats, scale: np.float32, low: np.float32, high: np.float32, residual: Floats
) -> np.float32:  # pragma: no cover - compiled
    """Add the same number to all integers of a block, as their zero point may move; return it.

    Shapes:
        sums: of the curvature's rows, (S,).
    """
    pull = bend = np.float32(0.0)
    for i in range(codes.shape[0]):
        pull += residual[i]
        bend += sums[i]
    if bend <= 0.0:
        return np.float32(0.0)
    step = np.float32(min(max(np.rint(pull / (scale * bend)), low), high))
    if step * scale * (pull + pull - step * scale * bend) <= 0.0:
        return np.float32(0.0)
    taken = step * scale
    for i in range(codes.shape[0]):
        codes[i] += step
        residual[i] -= taken * sums[i]
    return step


@compiled
def descend_block(
    curvature: Floats,
    bends: Floats,
    inverse: Floats,
    low: np.float32,
    high: np.float32,
    codes: Floats,
    scale: np.float32,
    residual: Floats,
    steps: Floats,
    gains: Floats,
) -> None:  # pragma: no cover - compiled
    """Change the integer of a block that gains the most to its best value, until none gains.

    Shapes:
        bends: the curvature's diagonal, (S,), and its inverse; steps, gains: (S,), which are written.
    """
    size = codes.shape[0]
    unit = np.float32(1.0) / scale
    for _ in range(MOST_MOVES * size):
        for i in range(size):
            step, least, most = np.rint(residual[i] * inverse[i] * unit), low - codes[i], high - codes[i]
            step = least if step < least else step
            steps[i] = most if step > most else step
        for i in range(size):
            delta = scale * steps[i]
            gains[i] = delta * (residual[i] + residual[i] - delta * bends[i])
        best = 0
        for i in range(1, size):
            if gains[i] > gains[best]:
                best = i
        if gains[best] <= TIE * bends[best] * scale * scale:
            return
        codes[best] += steps[best]
        delta = scale * steps[best]
        for j in range(size):
            residual[j] -= delta * curvature[best, j]
