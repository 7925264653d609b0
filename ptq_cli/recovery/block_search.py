"""Integers of weights whose blocks of inputs have scales of their own: block after block, all channels at once.

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
SWEEPS = 2
"""Over all blocks, once each has integers; a third one gained less than 0.02 dB."""
REFITS = 2
"""Of a block's scale in each sweep."""
MOST_PASSES = 8
"""Over the integers of a block; it ends where none changes."""
ROWS = 512
"""Output channels that are multiplied at once; threads share them."""
PANEL = 64
"""Columns of a triangular matrix that are eliminated together."""


def divided_by(lower: Float64s, right: Float64s) -> Float64s:
    """Return X with ``X (L L^T) = right``, panel by panel.

    Shapes:
        lower: L, (K, K); right and result: (M, K).
    """
    found, size = right.copy(), right.shape[1]
    panels = [slice(start, min(start + PANEL, size)) for start in range(0, size, PANEL)]
    for own in panels:
        if own.start:
            found[:, own] -= multiplied_floats(found[:, : own.start], lower[own, : own.start].T)
        found[:, own] = multiplied_floats(found[:, own], _inverse(lower[own, own]).T)
    for own in reversed(panels):
        if own.stop < size:
            found[:, own] -= multiplied_floats(found[:, own.stop :], lower[own.stop :, own])
        found[:, own] = multiplied_floats(found[:, own], _inverse(lower[own, own]))
    return found


def _inverse(lower: Float64s) -> Float64s:
    """Return the inverse of a small lower triangular matrix."""
    size = len(lower)
    found = np.zeros((size, size))
    for row in range(size):
        found[row, :row] = -(lower[row, :row, None] * found[:row, :row]).sum(axis=0) / lower[row, row]
        found[row, row] = 1.0 / lower[row, row]
    return found


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

    From the last block to the first, several scales are tried for each channel, and integers are found one after the
    other (Babai's nearest plane). Then each block in turn is improved integer by integer, and its scale fitted again.
    A channel that gained nothing stays as it is.

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
    """Choose scale, zero point and integers of a block for each channel, and what these miss of the best weights.

    Shapes:
        lower: (S, S); best, lost, codes, missed: (C, S); least, scales, zeros: (C,).
    """
    size = best.shape[1]
    moved = 3 if ends[0] == 0.0 else 1
    tried = factors.shape[0] * moved
    trial, zero, errors = np.empty(tried), np.zeros(tried), np.empty(tried)
    sums, left, tries = np.empty((size, tried)), np.empty((size, tried)), np.empty((size, tried))
    for channel in range(best.shape[0]):
        low, high = 0.0, 0.0
        for i in range(size):
            low, high = min(low, best[channel, i]), max(high, best[channel, i])
        width = high - low if moved > 1 else max(-low, high)
        for f in range(tried):
            wanted = np.float64(np.float32(max(factors[f // moved] * width / ends[1], least[channel])))
            trial[f] = wanted if width > 0.0 and wanted > 0.0 else 1.0
            if moved > 1:
                # The nearest zero point to that of the whole range, and its neighbors.
                zero[f] = min(
                    max(np.rint(-low * ends[1] / max(width, least[channel])) + f % moved - 1.0, 0.0), ends[1]
                )
            errors[f] = 0.0
        for i in range(size):
            for f in range(tried):
                sums[i, f] = lost[channel, i]
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
        chosen = 0
        for f in range(1, tried):
            if errors[f] < errors[chosen]:
                chosen = f
        scales[channel], zeros[channel] = trial[chosen], zero[chosen]
        for i in range(size):
            codes[channel, i] = tries[i, chosen]
            missed[channel, i] = left[i, chosen]


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
        curvature: (S, S); residual: (C, S), the best weights' distance times the curvature; codes, change: (C, S),
        the change of the real weights; least, scales, zeros: (C,).
    """
    size = codes.shape[1]
    rest, product, sums = np.empty(size), np.empty(size), np.zeros(size)
    for i in range(size):
        for j in range(size):
            sums[j] += curvature[i, j]
    for channel in range(codes.shape[0]):
        own, scale, zero = codes[channel], scales[channel], zeros[channel]
        rest[:] = residual[channel]
        for i in range(size):
            change[channel, i] = -scale * own[i]
        for turn in range(REFITS + 1):
            if turn:
                product[:] = 0.0
                for i in range(size):
                    if own[i] != 0.0:
                        for j in range(size):
                            product[j] += own[i] * curvature[i, j]
                slope, bend = 0.0, 0.0
                for i in range(size):
                    slope += own[i] * rest[i]
                    bend += own[i] * product[i]
                if bend <= 0.0:
                    break
                wanted = np.float64(np.float32(max(scale + slope / bend, least[channel])))
                if wanted <= 0.0:
                    break
                for j in range(size):
                    rest[j] -= (wanted - scale) * product[j]
                scale = wanted
            if ends[0] == 0.0:
                pull, stiff = rest.sum(), sums.sum()
                step = np.rint(pull / (scale * stiff)) if stiff > 0.0 else 0.0
                step = min(max(step, zero - ends[1]), zero)  # All integers stay, their zero point moves.
                if step * scale * (2.0 * pull - step * scale * stiff) > 0.0:
                    zero -= step
                    for i in range(size):
                        own[i] += step
                        rest[i] -= step * scale * sums[i]
            descend_block(curvature, ends[0] - zero, ends[1] - zero, own, scale, rest)
        scales[channel], zeros[channel] = scale, zero
        for i in range(size):
            change[channel, i] += scale * own[i]


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
