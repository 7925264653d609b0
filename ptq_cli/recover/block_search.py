"""Integers of weights whose blocks of inputs have scales of their own, for many channels at once.

A scale and the integers of a block are chosen together. What the block has lost is passed on to all others by
one product of matrices, so that a layer takes about four products of its weight and the moments.

All of it is float32: the errors that are compared are those of few bits, a thousand times as large as its
rounding. Moments and factors, which small differences decide, are float64 until then.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ptq_cli.core.compiled import compiled
from ptq_cli.recover.code_loops import CodeCandidates, Tried, choose_panel
from ptq_cli.recover.code_search import CodeGrid, Codes
from ptq_cli.recover.second_moments import Float64s
from ptq_cli.runtime.products import multiplied_floats

FACTORS = np.linspace(0.55, 1.15, 16)  # scales tried, of that where the largest integer is the largest weight
WIDTHS = np.linspace(0.65, 1.1, 8)  # with zero points: of that whose integers reach from smallest to largest
_POINTS = 3  # zero points that are tried with each scale: the nearest one and its neighbors
SWEEPS = 2  # over all blocks, once each has integers; a third one gained less than 0.02 dB
_REFITS = 2  # of a block's scale in each sweep
MOST_MOVES = 2  # changes of integers of a block in a row, for each input; it ends where none gains
_TIE = 1e-5  # of what a change by one step costs: a smaller gain is rounding of float32
ROWS_AT_ONCE = 512  # output channels that are multiplied at once; threads share them
_TOGETHER = 16  # channels whose candidates are tried at once: what they take fits the second-level cache
_Floats = npt.NDArray[np.float32]


def search_blocks(
    curvature: Float64s, lower: Float64s, best: Float64s, grid: CodeGrid, nearest: Codes, *, threads: int = 1
) -> tuple[Codes, Float64s, Float64s]:
    """Return integers and scales near to ``best``, and each channel's error with ``nearest`` and with these.

    From the last block to the first, several scales are tried for each channel, and integers are found one
    after the other (Babai's nearest plane). Then each block in turn is improved integer by integer, and its
    scale fitted again. A channel that gained nothing stays as it is.

    Shapes: curvature: A, (K, K), and lower its Cholesky factor; best: (M, K); the errors (M,).

    Source: Frantar et al., GPTQ (2023), for updates in blocks of columns.
    """
    matrix, factor, wanted = (array.astype(np.float32) for array in (curvature, lower, best))
    least = grid.least.astype(np.float32)
    found = Codes(
        integers=nearest.integers.copy(),
        scales=nearest.scales.copy(),
        zeros=nearest.zeros.copy() if nearest.zeros is not None else np.zeros(nearest.scales.shape),
    )
    before, after = np.empty(len(best)), np.empty(len(best))

    def part(first: int) -> None:
        own = slice(first, first + ROWS_AT_ONCE)
        lost = wanted[own] - nearest.part(own).weights(grid.block).astype(np.float32)
        before[own] = (multiplied_floats(lost, matrix) * lost).sum(axis=1)
        made = _planes(factor, wanted[own], grid, least[own])
        residual = multiplied_floats(wanted[own] - made.weights(grid.block), matrix)
        _improve(matrix, residual, grid, least[own], made)
        lost = wanted[own] - made.weights(grid.block)
        after[own] = (residual * lost).sum(axis=1)
        better = after[own] < before[own]
        after[own] = np.minimum(after[own], before[own])
        for one, other in zip(found.arrays, made.arrays, strict=True):
            one[own][better] = other[better]

    with ThreadPoolExecutor(threads, "search") as pool:
        list(pool.map(part, range(0, len(best), ROWS_AT_ONCE)))
    return found, before, after


class Block(NamedTuple):
    """Integers, scales and zero points of a block of inputs.

    Shapes: codes: (C, S); scales, zeros: (C,).
    """

    codes: _Floats
    scales: _Floats
    zeros: _Floats


def _planes(lower: _Floats, best: _Floats, grid: CodeGrid, least: _Floats) -> Codes:
    """Return integers and scales of some channels, found block by block from the last one."""
    channels, size = best.shape
    blocks = int(grid.block[-1]) + 1
    each = size // blocks
    integers = np.empty((channels, size), np.float32)
    scales, zeros = np.empty((2, channels, blocks), np.float32)
    lost, missed = np.zeros(best.shape, np.float32), np.empty((channels, each), np.float32)
    for number in reversed(range(blocks)):
        own = slice(number * each, (number + 1) * each)
        block = Block(np.empty((channels, each), np.float32), scales[:, number], zeros[:, number])
        wanted = (best[:, own].copy(), lost[:, own].copy())
        _choose_block(lower[own, own].copy(), wanted, grid, least, block, missed)
        integers[:, own] = block.codes
        if number:
            lost[:, : own.start] += multiplied_floats(missed, lower[own, : own.start])
    return Codes(integers=integers, scales=scales, zeros=zeros)


def _choose_block(
    lower: _Floats,
    wanted: tuple[_Floats, _Floats],
    grid: CodeGrid,
    least: _Floats,
    block: Block,
    missed: _Floats,
) -> None:
    """Choose scale, zero point and integers of a block for each channel, and what they miss of the best.

    Shapes: lower: (S, S); wanted: the best weights and what other blocks have lost, (C, S) each, as missed.
    """
    (best, lost), limits = wanted, grid.limits.astype(np.float32)
    factors = (WIDTHS if grid.has_zeros else FACTORS).astype(np.float32)
    tried = len(factors) * (_POINTS if grid.has_zeros else 1)
    channels, size = best.shape
    columns = min(_TOGETHER, channels) * tried
    trial = np.ones((1, columns), np.float32)
    zero = np.ones(columns, np.float32)
    aims, sums, codes, left = np.zeros((4, size, columns), np.float32)
    none = np.empty((size, 0), np.int64)
    # Not one compiled function: what is inlined into another is no longer compiled to vectors.
    for start in range(0, channels, _TOGETHER):
        own = slice(start, start + _TOGETHER)
        found = Tried(codes, left, np.zeros(columns, np.float32))
        spread_candidates((best[own], lost[own]), limits, least[own], factors, (aims, sums), (trial[0], zero))
        inverses: _Floats = np.reciprocal(trial)
        low, high = limits[0] - zero, limits[1] - zero
        candidates = CodeCandidates(np.zeros(size, np.int64), none, trial, inverses, low, high, limits[2])
        choose_panel(lower, 0, aims, sums, candidates, found)
        out = Block(block.codes[own], block.scales[own], block.zeros[own])
        take_best(found, len(best[own]) * tried, trial[0], zero, out, missed[own])


@compiled
def spread_candidates(
    best: tuple[_Floats, _Floats],
    limits: _Floats,
    least: _Floats,
    factors: _Floats,
    wanted: tuple[_Floats, _Floats],
    trial: tuple[_Floats, _Floats],
) -> None:  # pragma: no cover - compiled
    """Write what is wanted of each candidate of some channels, and the scales and zero points that are tried.

    Shapes: best: the weights and what other blocks have lost, (C, S) each; least: (C,); wanted: the same for
        each candidate, (S, any F of at least C times the candidates of each) each; trial: (F,) each.
    """
    points = _POINTS if limits[0] == 0.0 else 1
    tried, top = factors.shape[0] * points, limits[1]
    for channel in range(best[0].shape[0]):
        first = channel * tried
        low = high = np.float32(0.0)
        for i in range(best[0].shape[1]):
            aim, miss = best[0][channel, i], best[1][channel, i]
            low, high = min(low, aim), max(high, aim)
            for f in range(first, first + tried):
                wanted[0][i, f], wanted[1][i, f] = aim, miss
        width = high - low if points > 1 else max(-low, high)
        # The zero point of the whole range, and its neighbors.
        has_zeros = points > 1 and width > 0.0
        middle = np.rint(-low * top / width) if has_zeros else 0.0
        for f in range(tried):
            step = max(factors[f // points] * width / top, least[channel])
            trial[0][first + f] = step if width > 0.0 and step > 0.0 else 1.0
            trial[1][first + f] = min(max(middle + f % points - 1.0, 0.0), top) if has_zeros else 0.0


@compiled
def take_best(
    found: Tried, columns: int, trial: _Floats, zero: _Floats, block: Block, missed: _Floats
) -> None:  # pragma: no cover - compiled
    """Take the candidate of each channel with the least error.

    The first ``columns`` are candidates, those of each channel side by side.

    Shapes: trial, zero: (F,); missed: (C, S).
    """
    codes = block.codes
    tried = columns // codes.shape[0]
    for channel in range(codes.shape[0]):
        chosen = channel * tried + np.argmin(found.errors[channel * tried : (channel + 1) * tried])
        block.scales[channel], block.zeros[channel] = trial[chosen], zero[chosen]
        for i in range(codes.shape[1]):
            codes[channel, i], missed[channel, i] = found.codes[i, chosen], found.missed[i, chosen]


def _improve(curvature: _Floats, residual: _Floats, grid: CodeGrid, least: _Floats, found: Codes) -> None:
    """Improve integers, scales and zero points in place, block by block; ``residual`` is kept up to date."""
    integers, scales, zeros = found.arrays
    each, limits = residual.shape[1] // scales.shape[1], grid.limits.astype(np.float32)
    for _ in range(SWEEPS):
        for number in range(scales.shape[1]):
            own = slice(number * each, (number + 1) * each)
            block = Block(integers[:, own].copy(), scales[:, number], zeros[:, number])
            change = np.empty((len(residual), each), np.float32)
            improve_block(curvature[own, own].copy(), residual[:, own].copy(), limits, least, block, change)
            integers[:, own] = block.codes
            residual -= multiplied_floats(change, curvature[own])


@compiled
def improve_block(
    curvature: _Floats, residual: _Floats, limits: _Floats, least: _Floats, block: Block, change: _Floats
) -> None:  # pragma: no cover - compiled
    """Improve integers, scale and zero point of a block for each channel, all other blocks as they are.

    Shapes:
        curvature: (S, S); residual: (C, S), the best weights' distance times the curvature; least: (C,);
        change: (C, S), that of the real weights, which is written.
    """
    codes = block.codes
    size = codes.shape[1]
    sums, product, steps, gains = np.zeros((4, size), np.float32)
    diagonal = np.zeros((2, size), np.float32)
    for i in range(size):
        diagonal[0, i], diagonal[1, i] = curvature[i, i], 1.0 / curvature[i, i]
        for j in range(size):
            sums[j] += curvature[i, j]
    for channel in range(codes.shape[0]):
        own, rest = codes[channel], residual[channel]
        scale, zero = block.scales[channel], block.zeros[channel]
        for i in range(size):
            change[channel, i] = -scale * own[i]
        for turn in range(_REFITS + 1):
            if turn:
                scale = refit_block(curvature, own, scale, least[channel], rest, product)
            if limits[0] == 0.0:
                zero -= move_block(sums, own, scale, zero - limits[1], zero, rest)
            ends = (limits[0] - zero, limits[1] - zero)
            descend_block((curvature, diagonal), ends, own, scale, rest, (steps, gains))
        block.scales[channel], block.zeros[channel] = scale, zero
        for i in range(size):
            change[channel, i] += scale * own[i]


@compiled
def refit_block(
    curvature: _Floats,
    codes: _Floats,
    scale: np.float32,
    least: np.float32,
    residual: _Floats,
    product: _Floats,
) -> np.float32:  # pragma: no cover - compiled
    """Return the scale that is best for the integers of a block, with the residual for it."""
    size = codes.shape[0]
    product[:] = 0.0
    for i in range(size):
        code = codes[i]
        for j in range(size):
            product[j] += code * curvature[i, j]
    pull = own_curvature = np.float32(0.0)
    for i in range(size):
        pull += codes[i] * residual[i]
        own_curvature += codes[i] * product[i]
    if own_curvature <= 0.0:
        return scale
    wanted = scale + pull / own_curvature
    wanted = least if wanted < least else wanted
    if wanted <= 0.0:
        return scale
    more = wanted - scale
    for i in range(size):
        residual[i] -= more * product[i]
    return wanted


@compiled
def move_block(
    sums: _Floats, codes: _Floats, scale: np.float32, low: np.float32, high: np.float32, residual: _Floats
) -> np.float32:  # pragma: no cover - compiled
    """Add the same number to all integers of a block, as their zero point may move; return it.

    Shapes: sums: of the curvature's rows, (S,).
    """
    pull = own_curvature = np.float32(0.0)
    for i in range(codes.shape[0]):
        pull += residual[i]
        own_curvature += sums[i]
    if own_curvature <= 0.0:
        return np.float32(0.0)
    step = np.float32(min(max(np.rint(pull / (scale * own_curvature)), low), high))
    if step * scale * (pull + pull - step * scale * own_curvature) <= 0.0:
        return np.float32(0.0)
    taken = step * scale
    for i in range(codes.shape[0]):
        codes[i] += step
        residual[i] -= taken * sums[i]
    return step


@compiled
def descend_block(
    curvature: tuple[_Floats, _Floats],
    limits: tuple[np.float32, np.float32],
    codes: _Floats,
    scale: np.float32,
    residual: _Floats,
    scratch: tuple[_Floats, _Floats],
) -> None:  # pragma: no cover - compiled
    """Change the integer of a block that gains the most to its best value, until none gains.

    Shapes:
        curvature: (S, S), and its diagonal with the inverse of that, (2, S); scratch: (S,) each, is written.
    """
    (matrix, diagonal), (low, high), (steps, gains) = curvature, limits, scratch
    size, own, inverse = codes.shape[0], diagonal[0], diagonal[1]
    unit = np.float32(1.0) / scale
    for _ in range(MOST_MOVES * size):
        for i in range(size):
            step, least, most = np.rint(residual[i] * inverse[i] * unit), low - codes[i], high - codes[i]
            step = least if step < least else step
            steps[i] = most if step > most else step
        for i in range(size):
            delta = scale * steps[i]
            gains[i] = delta * (residual[i] + residual[i] - delta * own[i])
        best = 0
        for i in range(1, size):
            if gains[i] > gains[best]:
                best = i
        if gains[best] <= _TIE * own[best] * scale * scale:
            return
        codes[best] += steps[best]
        delta = scale * steps[best]
        for j in range(size):
            residual[j] -= delta * matrix[best, j]
