"""Integers of which no two neighbors exceed a sum of 16 bits, and how much wider their scales become.

Each channel takes the scale between its own and the one that its worst pair needs at which the integers are
nearest to the weights, with those pairs cut that still exceed their sum. Then weights are rounded the other
way until the errors of a filter, and of a channel, add up to about nothing: activations have a mean.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ptq_cli.core.tensors import Array
from ptq_cli.qdq.write.weight_quantizer import make_up

Float64s = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]

LARGEST = 127  # of a weight: -128 is not exact on every ARM
SHARES = (0.0, 0.25, 0.5, 0.7, 0.85, 1.0)  # of the way from a channel's own scale to that of its worst pair
_PART = 1 << 20  # weights looked at together


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Weights by output channel, in steps of the scales that the file has.

    Attributes:
        steps: the weights.
        mates: partners of each weight of a row, -1 for none; one column for each order that a kernel reads in.
        limit: what two mates of one sign may add up to.
        filter_size: neighbors whose activations are alike, as the positions of a kernel; 1 for none.

    Shapes: steps (O, K); mates (K, any).
    """

    steps: npt.NDArray[np.float32]
    mates: Int64s
    limit: int
    filter_size: int

    def pairs(self) -> list[tuple[Int64s, Int64s]]:
        """Return the first and the second weight of each pair, for each order."""
        first = np.arange(len(self.mates))
        return [
            (kept, column[kept]) for column in self.mates.T for kept in [first[column > first]] if kept.size
        ]


def needed_factors(rows: Rows) -> Float64s:
    """How much wider the scale of each row has to be for none of its pairs to exceed the limit; 1 at least.

    Shapes: the result (O,).

    Example:
        >>> rows = Rows(steps=np.float32([[127, 65]]), mates=np.int64([[1], [0]]), limit=128, filter_size=1)
        >>> needed_factors(rows).tolist()
        [1.5]
    """
    worst = np.full(len(rows.steps), float(rows.limit))
    for one, other in rows.pairs():
        for part in _parts(rows.steps):
            sums = rows.steps[part][:, one] + rows.steps[part][:, other]
            worst[part] = np.maximum(worst[part], np.abs(sums, out=sums).max(axis=1, initial=0.0))
    return worst / rows.limit


def safe_integers(
    rows: Rows, is_chosen: Array, exact_factor: Callable[[Float64s], Float64s], *, per_row: bool
) -> tuple[Array, Float64s]:
    """Choose integers and factors of the scales.

    Args:
        rows: the weights.
        is_chosen: which of them are to change; all, if they share a factor.
        exact_factor: what a factor becomes where the scale is stored in the type that the file has.
        per_row: each row may have its own factor; otherwise all share one.

    Shapes: is_chosen (O,); integers (O, K), zeros of other rows, and factors (O,).
    """
    reach = np.abs(rows.steps).max(axis=1, initial=0.0) / (LARGEST + 1)
    needed = np.maximum(needed_factors(rows), reach)
    if not per_row:
        needed[:] = needed.max(initial=1.0)
    integers = np.zeros(rows.steps.shape, np.int8)
    factors = np.ones(len(needed))
    chosen = np.flatnonzero(is_chosen)
    if not chosen.size:
        return integers, factors
    step = max(1, _PART // max(rows.steps.shape[1], 1))
    starts = range(0, chosen.size, step)
    parts = [chosen[start : start + step] for start in starts]
    if per_row:
        for part in parts:
            factors[part] = _best_factors(rows, part, needed[part])
    else:
        costs = sum(_costs(rows, part, needed[part]).sum(axis=1) for part in parts)
        factors[:] = 1.0 + SHARES[int(np.argmin(costs))] * (needed[0] - 1.0)
    factors[chosen] = exact_factor(factors)[chosen]
    for part in parts:
        integers[part] = _rounded(rows, part, factors[part])
    return integers, factors


def _parts(steps: Array) -> list[slice]:
    size = max(1, _PART // max(steps.shape[1], 1))
    return [slice(start, start + size) for start in range(0, len(steps), size)]


def _best_factors(rows: Rows, part: Int64s, needed: Float64s) -> Float64s:
    best = np.argmin(_costs(rows, part, needed), axis=0)
    factors: Float64s = 1.0 + np.array(SHARES)[best] * (needed - 1.0)
    return factors


def _costs(rows: Rows, part: Int64s, needed: Float64s) -> Float64s:
    """Squared errors of some rows at each share.

    Shapes: (shares, rows).
    """
    steps = rows.steps[part]
    found = []
    for share in SHARES:
        factors = (1.0 + share * (needed - 1.0)).astype(np.float32)[:, None]
        wanted = steps / factors
        errors = wanted - cut_pairs(np.rint(wanted), wanted, rows)
        found.append(np.einsum("ok,ok->o", errors, errors, dtype=np.float64) * factors[:, 0] ** 2)
    return np.array(found)


def cut_pairs(codes: npt.NDArray[np.float32], wanted: Array, rows: Rows) -> npt.NDArray[np.float32]:
    """Cut pairs to the limit, in place: both of a pair give way alike.

    Shapes: codes, wanted: (rows, K), both in steps of the new scales.
    """
    np.clip(codes, -LARGEST, LARGEST, out=codes)
    for one, other in rows.pairs():
        row, pair = np.nonzero(np.abs(codes[:, one] + codes[:, other]) > rows.limit)
        if not row.size:
            continue
        a, b = one[pair], other[pair]
        sign = np.sign(codes[row, a] + codes[row, b])
        # Another order may have cut one of them already: neither grows again.
        first, second = (
            np.minimum(sign * wanted[row, at], sign * codes[row, at] + 0.5) for at in (a, b)
        )
        excess = first + second - rows.limit
        lower, upper = rows.limit - sign * codes[row, b], sign * codes[row, a]
        kept = np.clip(np.rint(first - excess / 2), lower, upper)
        codes[row, a], codes[row, b] = sign * kept, sign * (rows.limit - kept)
    return codes


def _rounded(rows: Rows, part: Int64s, factors: Float64s) -> Array:
    wanted = rows.steps[part] / factors[:, None]
    codes = cut_pairs(np.rint(wanted).astype(np.float32), wanted, rows).astype(np.float64)
    ends = np.array([-LARGEST, LARGEST, rows.limit], np.float64)
    if rows.filter_size > 1:
        make_up(wanted, codes, rows.filter_size, ends, rows.mates)
    make_up(wanted, codes, codes.shape[1], ends, rows.mates)
    return codes.astype(np.int8)
