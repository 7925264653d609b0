"""Compiled loops of the search for integers and scales, over the channels or the inputs of a layer.

Each adds in a fixed order, so the number of threads changes no bit of a result.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ptq_cli.core.compiled import compiled
from ptq_cli.recover.second_moments import Float64s, Int64s

_Float32s = npt.NDArray[np.float32]
MOST_SWEEPS = 100  # over the integers of a channel; it ends where none changes, which takes fewer than ten
_TIE = 1e-12  # of what a change by one step costs: a smaller gain is rounding, and would go back and forth


class CodeCandidates(NamedTuple):
    """Scales that are tried, one for each column.

    Attributes:
        block: of each input.
        partners: the other inputs that each one is a pair with; -1 for none.
        scales, inverses: of each block.
        low, high: the integers that each column allows.
        most: what the integers of a pair of one sign may add up to.

    Shapes: block: (K,); partners: (K, any); scales, inverses: (B, F); low, high: (F,).
    """

    block: Int64s
    partners: Int64s
    scales: _Float32s
    inverses: _Float32s
    low: _Float32s
    high: _Float32s
    most: np.float32


class Tried(NamedTuple):
    """What each column came to: its integers, what they miss of the weights wanted, and the error.

    Shapes: codes, missed: (K, F); errors: (F,).
    """

    codes: _Float32s
    missed: _Float32s
    errors: _Float32s


@compiled
def choose_panel(
    lower: _Float32s, start: int, wanted: _Float32s, lost: _Float32s, tried: CodeCandidates, found: Tried
) -> None:  # pragma: no cover - compiled
    """Choose the integers of a panel of inputs, the first of which is ``start``, from the last one on.

    Shapes: lower: (P, P) of the Cholesky factor; wanted, lost: (P, F), which is changed.

    Source: Babai, On Lovász' lattice reduction and the nearest lattice point problem (1986).
    """
    errors, low, high = found.errors, tried.low, tried.high
    columns = errors.shape[0]
    for i in range(lower.shape[0] - 1, -1, -1):
        pivot, best, sums = lower[i, i], wanted[i], lost[i]
        scale, inverse = tried.scales[tried.block[start + i]], tried.inverses[tried.block[start + i]]
        own, left = found.codes[start + i], found.missed[start + i]
        shift = np.float32(1.0) / pivot
        # No division, min or max in loops over columns: compilers make vectors of these.
        for f in range(columns):
            code, least, most = np.rint((best[f] + sums[f] * shift) * inverse[f]), low[f], high[f]
            code = least if code < least else code
            own[f] = most if code > most else code
        for m in tried.partners[start + i]:
            if m > start + i:  # Those before it are not chosen yet, and will look at this one.
                partner = found.codes[m]
                for f in range(columns):
                    own[f] = beside(own[f], partner[f], tried.most)
        for f in range(columns):
            left[f] = best[f] - scale[f] * own[f]
            rest = pivot * left[f] + sums[f]
            errors[f] += rest * rest
        for j in range(i):
            factor, other = lower[i, j], lost[j]
            for f in range(columns):
                other[f] += factor * left[f]


@compiled
def beside(code: float, partner: float, most: float) -> float:  # pragma: no cover - compiled
    """Return the integer nearest to ``code`` whose sum with its partner is allowed, if both have one sign."""
    if partner > 0.0:
        return min(code, most - partner)
    if partner < 0.0:
        return max(code, -most - partner)
    return code


@compiled
def all_fit(codes: Float64s, partners: Int64s, most: float) -> bool:  # pragma: no cover - compiled
    """Whether no pair exceeds the largest sum of its integers."""
    for i in range(codes.shape[0]):
        for m in partners[i]:
            if m > i and codes[i] * codes[m] > 0.0 and abs(codes[i] + codes[m]) > most:
                return False
    return True


@compiled
def try_all(
    curvature: Float64s, best: Float64s, scales: Float64s, limits: Float64s, partners: Int64s, codes: Float64s
) -> None:  # pragma: no cover - compiled
    """Replace the codes of few inputs as ``try_one`` does, for each channel and each of its scales.

    Shapes: best: (C, K); scales: (C, any, 1); codes: (C, S, K).
    """
    for c in range(codes.shape[0]):
        for s in range(codes.shape[1]):
            try_one(curvature, best[c], scales[c, s, 0], limits, partners, codes[c, s])


@compiled
def try_one(
    curvature: Float64s, best: Float64s, scale: float, limits: Float64s, partners: Int64s, codes: Float64s
) -> None:  # pragma: no cover - compiled
    """Replace the codes of few inputs by the best choice of next lower and next higher integers.

    ``limits`` are the lowest and highest integer, and the most that a pair of one sign adds up to. Where
    pairs allow none of these choices, the codes stay.
    """
    size = codes.shape[0]
    low, residual, trial = np.empty(size), np.zeros(size), np.empty(size)
    up = np.zeros(size, np.int64)
    for i in range(size):
        low[i] = min(max(np.floor(best[i] / scale), limits[0]), limits[1] - 1.0)
    for i in range(size):
        for j in range(size):
            residual[j] += curvature[i, j] * (best[i] - scale * low[i])
    change, least, chosen = 0.0, np.inf, -1
    if all_fit(low, partners, limits[2]):
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
            if all_fit(trial, partners, limits[2]):
                least, chosen = change, step
    if chosen < 0:
        return
    gray = chosen ^ (chosen >> 1)
    for i in range(size):
        codes[i] = low[i] + ((gray >> i) & 1)


class Objective(NamedTuple):
    """What the rows of a search share.

    Attributes:
        members: the inputs of each block.
        limits: the lowest and highest integer, and the most that a pair of one sign adds up to.

    Shapes: curvature: (K, K); block: (K,); members: (B, K / B); partners: (K, any).
    """

    curvature: Float64s
    block: Int64s
    members: Int64s
    limits: Float64s
    partners: Int64s


class ChannelRows(NamedTuple):
    """Integers and scales that are improved in place, several rows for a channel.

    Attributes:
        residual: what they miss of the best weights, times the curvature.

    Shapes: codes, residual: (R, K); scales: (R, B).
    """

    codes: Float64s
    scales: Float64s
    residual: Float64s


@compiled
def improve(
    shared: Objective, best: Float64s, pull: Float64s, least: Float64s, refits: int, rows: ChannelRows
) -> Float64s:  # pragma: no cover - compiled
    """Improve codes and scales in place; return the objectives, at local optima of single changes.

    Shapes: best, pull: (R, K); least, the smallest scales, and the result: (R,).
    """
    codes, scales, residual = rows.codes, rows.scales, rows.residual
    running, product = np.ones(codes.shape[0], np.bool_), np.empty(codes.shape[1])
    descend(shared, rows, running.copy())
    for _ in range(refits):
        for row in range(codes.shape[0]):
            running[row] = running[row] and refit(shared, rows, row, pull[row], least[row], product)
        descend(shared, rows, running.copy())
    errors = np.zeros(codes.shape[0])
    for row in range(codes.shape[0]):
        for i in range(codes.shape[1]):
            errors[row] += residual[row, i] * (best[row, i] - scales[row, shared.block[i]] * codes[row, i])
    return errors


@compiled
def refit(
    shared: Objective, rows: ChannelRows, row: int, pull: Float64s, least: float, product: Float64s
) -> bool:  # pragma: no cover - compiled
    """Give each block of a row the scale that is best for its integers; return whether one changed."""
    curvature, members = shared.curvature, shared.members
    codes, scale, residual = rows.codes[row], rows.scales[row], rows.residual[row]
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
        slope, own_curvature = 0.0, 0.0
        for i in members[b]:
            slope += codes[i] * residual[i]
            own_curvature += codes[i] * product[i]
        if own_curvature <= 0.0:
            continue
        wanted = max(scale[b] + slope / own_curvature, least)
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
    shared: Objective, rows: ChannelRows, running: npt.NDArray[np.bool_]
) -> None:  # pragma: no cover - compiled
    """Change one integer at a time of each running row to its best value, until none changes.

    All rows are at the same input, so that what is read of a large curvature serves them all.

    Source: Nair and Suggala, CDQuant (2024), for coordinate descent.
    """
    curvature, limits = shared.curvature, shared.limits
    codes, scales, residual = rows.codes, rows.scales, rows.residual
    count, size = codes.shape
    for _ in range(MOST_SWEEPS):
        changed = np.zeros(count, np.bool_)
        for i in range(size):
            own_curvature = curvature[i, i]
            for row in range(count):
                if not running[row]:
                    continue
                step = scales[row, shared.block[i]]
                if abs(residual[row, i]) <= 0.5 * step * own_curvature:  # It would be rounded to what it is.
                    continue
                wanted = codes[row, i] + np.rint(residual[row, i] / (step * own_curvature))
                wanted = min(max(wanted, limits[0]), limits[1])
                for m in shared.partners[i]:
                    if m >= 0:
                        wanted = beside(wanted, codes[row, m], limits[2])
                delta = step * (wanted - codes[row, i])
                gain = 2.0 * delta * residual[row, i] - delta * delta * own_curvature
                if gain <= _TIE * own_curvature * step * step:
                    continue
                codes[row, i] = wanted
                changed[row] = True
                for j in range(size):
                    residual[row, j] -= delta * curvature[i, j]
        running[:] = changed
        if not np.any(changed):
            return
