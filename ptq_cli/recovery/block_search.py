"""Integers of weights whose blocks of inputs have scales of their own, for many channels at once.

A scale and the integers of a block are chosen together. What the block has lost is passed on to all others by
one product of matrices, so that a layer takes about four products of its weight and the moments.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ptq_cli.collectors.host_kernels import compiled
from ptq_cli.recovery.code_search import TIE, CodeGrid, Codes
from ptq_cli.recovery.second_moments import Float64s
from ptq_cli.runtime.probes import multiplied_floats

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
MOST_PASSES = 8
"""Over the integers of a block; it ends where none changes."""
ROWS = 512
"""Output channels that are multiplied at once; threads share them."""


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
    found = Codes(
        integers=nearest.integers.copy(),
        scales=nearest.scales.copy(),
        zeros=nearest.zeros.copy() if nearest.zeros is not None else np.zeros(nearest.scales.shape),
    )
    before, after = np.empty(len(best)), np.empty(len(best))

    def part(first: int) -> None:
        own = slice(first, first + ROWS)
        lost = best[own] - nearest.part(own).weights(grid.block)
        before[own] = (multiplied_floats(lost, curvature) * lost).sum(axis=1)
        made = _planes(lower, best[own], grid, grid.least[own])
        residual = multiplied_floats(best[own] - made.weights(grid.block), curvature)
        _improve(curvature, residual, grid, grid.least[own], made)
        lost = best[own] - made.weights(grid.block)
        after[own] = (residual * lost).sum(axis=1)
        better = after[own] < before[own]
        after[own] = np.minimum(after[own], before[own])
        for one, other in zip(found.arrays, made.arrays, strict=True):
            one[own][better] = other[better]

    with ThreadPoolExecutor(threads, "search") as pool:
        list(pool.map(part, range(0, len(best), ROWS)))
    return found, before, after


def _planes(lower: Float64s, best: Float64s, grid: CodeGrid, least: Float64s) -> Codes:
    """Return integers and scales of some channels, found block by block from the last one."""
    channels, size = best.shape
    blocks = int(grid.block[-1]) + 1
    each = size // blocks
    empty = (np.empty(shape) for shape in ((channels, size), (channels, blocks), (channels, blocks)))
    integers, scales, zeros = empty
    lost, missed = np.zeros(best.shape), np.empty((channels, each))
    for block in reversed(range(blocks)):
        own = slice(block * each, (block + 1) * each)
        codes = np.empty((channels, each))
        choose_block(
            lower[own, own].copy(),
            best[:, own].copy(),
            lost[:, own].copy(),
            _ends(grid),
            least,
            WIDTHS if grid.has_zeros else FACTORS,
            codes,
            scales[:, block],
            zeros[:, block],
            missed,
        )
        integers[:, own] = codes
        if block:
            lost[:, : own.start] += multiplied_floats(missed, lower[own, : own.start])
    return Codes(integers=integers, scales=scales, zeros=zeros)


def _ends(grid: CodeGrid) -> Float64s:
    return np.array([grid.lowest, grid.highest], np.float64)


@compiled
def choose_block(
    lower: Float64s,
    best: Float64s,
    lost: Float64s,
    ends: Float64s,
    least: Float64s,
    factors: Float64s,
    codes: Float64s,
    scales: Float64s,
    zeros: Float64s,
    missed: Float64s,
) -> None:  # pragma: no cover - compiled
    """Choose scale, zero point and integers of a block for each channel, and what they miss of the best.

    Shapes:
        lower: (S, S); best, lost, codes, missed: (C, S); least, scales, zeros: (C,).
    """
    size = best.shape[1]
    tried = factors.shape[0] * (POINTS if ends[0] == 0.0 else 1)
    trial, zero, errors = np.empty(tried), np.zeros(tried), np.empty(tried)
    sums, left, tries = np.empty((size, tried)), np.empty((size, tried)), np.empty((size, tried))
    for channel in range(best.shape[0]):
        candidates(best[channel], ends, least[channel], factors, trial, zero)
        errors[:] = 0.0
        for i in range(size):
            sums[i] = lost[channel, i]
        for i in range(size - 1, -1, -1):
            pivot, wanted = lower[i, i], best[channel, i]
            for f in range(tried):
                code = np.rint((wanted + sums[i, f] / pivot) / trial[f])
                code = min(max(code, ends[0] - zero[f]), ends[1] - zero[f])
                tries[i, f] = code
                rest = wanted - trial[f] * code
                left[i, f] = rest
                total = pivot * rest + sums[i, f]
                errors[f] += total * total
            for j in range(i):
                factor = lower[i, j]
                for f in range(tried):
                    sums[j, f] += factor * left[i, f]
        chosen = np.argmin(errors)
        scales[channel], zeros[channel] = trial[chosen], zero[chosen]
        codes[channel], missed[channel] = tries[:, chosen], left[:, chosen]


@compiled
def candidates(
    best: Float64s, ends: Float64s, least: float, factors: Float64s, trial: Float64s, zero: Float64s
) -> None:  # pragma: no cover - compiled
    """Write the scales that are tried for a block, each with its zero point.

    Shapes:
        best: (S,); trial, zero: (F,).
    """
    points = trial.shape[0] // factors.shape[0]
    low, high = min(best.min(), 0.0), max(best.max(), 0.0)
    width = high - low if points > 1 else max(-low, high)
    for f in range(trial.shape[0]):
        wanted = np.float64(np.float32(max(factors[f // points] * width / ends[1], least)))
        trial[f] = wanted if width > 0.0 and wanted > 0.0 else 1.0
        if points > 1 and width > 0.0:
            # The zero point of the whole range, and its neighbors.
            zero[f] = min(max(np.rint(-low * ends[1] / width) + f % points - 1.0, 0.0), ends[1])


def _improve(curvature: Float64s, residual: Float64s, grid: CodeGrid, least: Float64s, found: Codes) -> None:
    """Improve integers, scales and zero points in place, block by block; ``residual`` is kept up to date."""
    integers, scales, zeros = found.arrays
    each = residual.shape[1] // scales.shape[1]
    for _ in range(SWEEPS):
        for block in range(scales.shape[1]):
            own = slice(block * each, (block + 1) * each)
            codes, change = integers[:, own].copy(), np.empty((len(residual), each))
            improve_block(
                curvature[own, own].copy(),
                residual[:, own].copy(),
                _ends(grid),
                least,
                codes,
                scales[:, block],
                zeros[:, block],
                change,
            )
            integers[:, own] = codes
            residual -= multiplied_floats(change, curvature[own])


@compiled
def improve_block(
    curvature: Float64s,
    residual: Float64s,
    ends: Float64s,
    least: Float64s,
    codes: Float64s,
    scales: Float64s,
    zeros: Float64s,
    change: Float64s,
) -> None:  # pragma: no cover - compiled
    """Improve integers, scale and zero point of a block for each channel, all other blocks as they are.

    Shapes:
        curvature: (S, S); residual: (C, S), the best weights' distance times the curvature; codes, change:
        (C, S), the change of the real weights; least, scales, zeros: (C,).
    """
    rest, sums = np.empty(codes.shape[1]), np.zeros(codes.shape[1])
    for i in range(codes.shape[1]):
        sums += curvature[i]
    for channel in range(codes.shape[0]):
        own, scale, zero = codes[channel], scales[channel], zeros[channel]
        rest[:] = residual[channel]
        change[channel] = -scale * own
        for turn in range(REFITS + 1):
            if turn:
                scale = refit_block(curvature, own, scale, least[channel], rest)
            if ends[0] == 0.0:
                zero -= move_block(sums, own, scale, zero - ends[1], zero, rest)
            descend_block(curvature, ends[0] - zero, ends[1] - zero, own, scale, rest)
        scales[channel], zeros[channel] = scale, zero
        change[channel] += scale * own


@compiled
def refit_block(
    curvature: Float64s, codes: Float64s, scale: float, least: float, residual: Float64s
) -> float:  # pragma: no cover - compiled
    """Return the scale that is best for the integers of a block, with the residual for it."""
    product = np.zeros(codes.shape[0])
    for i in range(codes.shape[0]):
        if codes[i] != 0.0:
            product += codes[i] * curvature[i]
    bend = (codes * product).sum()
    if bend <= 0.0:
        return scale
    wanted = np.float64(np.float32(max(scale + (codes * residual).sum() / bend, least)))
    if wanted <= 0.0:
        return scale
    residual -= (wanted - scale) * product
    return wanted


@compiled
def move_block(
    sums: Float64s, codes: Float64s, scale: float, low: float, high: float, residual: Float64s
) -> float:  # pragma: no cover - compiled
    """Add the same number to all integers of a block, as their zero point may move; return it.

    Shapes:
        sums: of the curvature's rows, (S,).
    """
    pull, bend = residual.sum(), sums.sum()
    step = min(max(np.rint(pull / (scale * bend)), low), high) if bend > 0.0 else 0.0
    if step * scale * (2.0 * pull - step * scale * bend) <= 0.0:
        return 0.0
    codes += step
    residual -= step * scale * sums
    return step


@compiled
def descend_block(
    curvature: Float64s, low: float, high: float, codes: Float64s, scale: float, residual: Float64s
) -> None:  # pragma: no cover - compiled
    """Change one integer of a block at a time to its best value, until none changes."""
    size = codes.shape[0]
    for _ in range(MOST_PASSES):
        changed = False
        for i in range(size):
            wanted = codes[i] + np.rint(residual[i] / (scale * curvature[i, i]))
            wanted = min(max(wanted, low), high)
            delta = scale * (wanted - codes[i])
            gain = 2.0 * delta * residual[i] - delta * delta * curvature[i, i]
            if gain <= TIE * curvature[i, i] * scale * scale:
                continue
            codes[i] = wanted
            changed = True
            for j in range(size):
                residual[j] -= delta * curvature[i, j]
        if not changed:
            return
