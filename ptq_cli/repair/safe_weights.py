"""Integers of which no two neighbors exceed a sum of 16 bits, and how much wider their scales become.

Each channel takes the scale between its own and the one that its worst pair needs at which the integers are
expected to be nearest to the weights: a wider one rounds all of them more coarsely, a narrower one cuts those
pairs that still exceed their sum. Then weights are rounded the other way until the errors of a filter, and of
a channel, add up to about nothing: activations have a mean.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ptq_cli.core.compiled import compiled
from ptq_cli.qdq.write.weight_quantizer import make_up

Reals = npt.NDArray[np.float64]
Elements = npt.NDArray[Any]
PairPositions = npt.NDArray[np.int64]

LARGEST = 127  # of a weight: -128 is not exact on every ARM
_SHARES = np.linspace(0.0, 1.0, 17)  # of the way from a channel's own scale to that of its worst pair
_PART = 1 << 18  # weights that a thread takes at once
_ROUNDING = 1 / 12  # mean squared error of rounding, in steps


@dataclass(frozen=True, kw_only=True)
class WeightRows:
    """Weights in steps of the scales that the file has, a row for each output channel.

    Attributes:
        steps: integers as int8, or floats.
        mates: partners of each weight of a row, -1 for none; a column for each order that a kernel reads in.
        limit: what two mates of one sign may add up to.
        filter_size: neighbors whose activations are alike, as the positions of a kernel; 1 for none.

    Shapes: steps (O, K); mates (K, any).
    """

    steps: Elements
    mates: PairPositions
    limit: int
    filter_size: int

    def pairs(self) -> tuple[PairPositions, PairPositions]:
        """Return the first and the second weight of each pair of each order."""
        first = np.arange(len(self.mates))
        kept = [np.flatnonzero(column > first) for column in self.mates.T]
        seconds = [column[index] for column, index in zip(self.mates.T, kept, strict=True)]
        return np.concatenate(kept), np.concatenate(seconds)


@dataclass(frozen=True, kw_only=True)
class SafeRows:
    """Integers that keep the limit.

    Attributes:
        factors: how many times as wide the scale of each row is now.
        changes: the largest change of a weight of each row, in steps of its old scale.

    Shapes: integers (O, K), of rows that were chosen; factors, changes (O,).
    """

    integers: Elements
    factors: Reals
    changes: Reals


def needed_factors(rows: WeightRows, threads: int = 1) -> Reals:
    """How much wider the scale of each row has to be for none of its pairs to exceed the limit; 1 at least.

    Shapes: the result (O,).

    Example:
        >>> mates = np.int64([[1], [0]])
        >>> rows = WeightRows(steps=np.int8([[127, 65]]), mates=mates, limit=128, filter_size=1)
        >>> needed_factors(rows).tolist()
        [1.5]
    """
    one, other = rows.pairs()
    worst = np.empty(len(rows.steps))
    _in_parts(rows.steps, threads, lambda part: _worst_sums(rows.steps[part], one, other, worst[part]))
    return np.maximum(worst / rows.limit, 1.0)


def safe_integers(
    rows: WeightRows,
    is_chosen: Elements,
    representable: Callable[[Reals], Reals],
    *,
    per_row: bool,
    threads: int = 1,
) -> SafeRows:
    """Choose integers and factors of the scales.

    Args:
        rows: the weights.
        is_chosen: which of them are to change; all, if they share a factor.
        representable: what factors become where scales are stored in the type that the file has.
        per_row: each row may have its own factor; otherwise all share one.
        threads: that work on a large weight.

    Shapes: is_chosen (O,).

    Example:
        >>> mates = np.int64([[1], [0], [3], [2]])
        >>> rows = WeightRows(steps=np.int8([[127, 65, 3, 9]]), mates=mates, limit=128, filter_size=1)
        >>> safe_integers(rows, np.array([True]), lambda factors: factors, per_row=True).integers.tolist()
        [[85, 43, 2, 6]]
    """
    one, other = rows.pairs()
    count, size = rows.steps.shape
    needed = np.maximum(
        needed_factors(rows, threads), np.abs(rows.steps).max(axis=1, initial=0) / (LARGEST + 1)
    )
    if not per_row:
        needed[:] = needed.max(initial=1.0)
    tried = 1.0 + _SHARES * (needed[:, None] - 1.0)
    costs = np.zeros(tried.shape)
    _in_parts(
        rows.steps,
        threads,
        lambda part: _cut_costs(rows.steps[part], one, other, float(rows.limit), tried[part], costs[part]),
    )
    is_rounded = tried > 1.0 if rows.steps.dtype == np.int8 else np.ones(tried.shape, bool)
    costs += is_rounded * tried**2 * (size * _ROUNDING)
    if not per_row:
        costs[:] = costs.sum(axis=0)
    best = np.argmin(costs, axis=1)
    factors = np.where(is_chosen, representable(tried[np.arange(count), best]), 1.0)
    integers, changes = np.zeros(rows.steps.shape, np.int8), np.zeros(count)
    ends = np.array([-LARGEST, LARGEST, rows.limit], np.float64)
    _in_parts(
        rows.steps,
        threads,
        lambda part: _round_rows(
            rows.steps[part],
            factors[part],
            is_chosen[part],
            one,
            other,
            rows.mates,
            rows.filter_size,
            ends,
            integers[part],
            changes[part],
        ),
    )
    return SafeRows(integers=integers, factors=factors, changes=changes)


def _in_parts(steps: Elements, threads: int, work: Callable[[slice], None]) -> None:
    """Do the work for some rows at a time; what is compiled lets other threads run."""
    size = max(1, _PART // max(steps.shape[1], 1))
    parts = [slice(start, start + size) for start in range(0, len(steps), size)]
    if len(parts) < 2 or threads < 2:
        for part in parts:
            work(part)
        return
    with ThreadPoolExecutor(threads, "repair") as pool:
        list(pool.map(work, parts))


@compiled
def _worst_sums(
    rows: Any, one: PairPositions, other: PairPositions, worst: Reals
) -> None:  # pragma: no cover - compiled
    for row in range(rows.shape[0]):
        largest = 0.0
        for pair in range(one.size):
            total = abs(float(rows[row, one[pair]]) + float(rows[row, other[pair]]))
            largest = max(largest, total)
        worst[row] = largest


@compiled
def _cut_costs(
    rows: Any, one: PairPositions, other: PairPositions, limit: float, factors: Reals, costs: Reals
) -> None:  # pragma: no cover - compiled
    """Add the squared errors of pairs that are cut at each factor, in steps of the old scale."""
    for row in range(rows.shape[0]):
        for pair in range(one.size):
            total = abs(float(rows[row, one[pair]]) + float(rows[row, other[pair]]))
            if total <= limit:
                continue
            for at in range(factors.shape[1]):
                excess = total - limit * factors[row, at]
                if excess > 0.0:
                    costs[row, at] += 0.5 * excess * excess


@compiled
def _round_rows(
    rows: Any,
    factors: Reals,
    is_chosen: Any,
    one: PairPositions,
    other: PairPositions,
    mates: PairPositions,
    filter_size: int,
    ends: Reals,
    integers: Any,
    changes: Reals,
) -> None:  # pragma: no cover - compiled
    """Round chosen rows; of a pair that exceeds the limit both give way alike."""
    size = rows.shape[1]
    wanted, codes = np.empty((1, size)), np.empty((1, size))
    limit = ends[2]
    for row in range(rows.shape[0]):
        if not is_chosen[row]:
            continue
        for k in range(size):
            wanted[0, k] = float(rows[row, k]) / factors[row]
            codes[0, k] = min(max(np.rint(wanted[0, k]), ends[0]), ends[1])
        for pair in range(one.size):
            a, b = one[pair], other[pair]
            total = codes[0, a] + codes[0, b]
            if abs(total) <= limit:
                continue
            sign = 1.0 if total > 0.0 else -1.0
            # Another order may have cut one of them already: neither grows again.
            first = min(sign * wanted[0, a], sign * codes[0, a] + 0.5)
            second = min(sign * wanted[0, b], sign * codes[0, b] + 0.5)
            kept = np.rint(first - 0.5 * (first + second - limit))
            kept = min(max(kept, limit - sign * codes[0, b]), sign * codes[0, a])
            codes[0, a], codes[0, b] = sign * kept, sign * (limit - kept)
        if filter_size > 1:
            make_up(wanted, codes, filter_size, ends, mates)
        make_up(wanted, codes, size, ends, mates)
        largest = 0.0
        for k in range(size):
            integers[row, k] = codes[0, k]
            largest = max(largest, abs(codes[0, k] - wanted[0, k]))
        changes[row] = largest * factors[row]
