"""Intervals of a measurement: from flips where samples are right or wrong, otherwise by bootstrap."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ptq_cli.evaluation.bootstrap import (
    RESAMPLES,
    Float64Array,
    Reach,
    Unseen,
    bootstrap_intervals,
    count_flips,
    moved_by_unseen,
    resamples_within,
    reweighed_intervals,
)
from ptq_cli.evaluation.document.measurement import Measurement, Unit, hits_to_text
from ptq_cli.evaluation.interval import Interval, Method, drop_interval, share_interval
from ptq_cli.evaluation.metrics.base import Resampling, Reweighed, SampleSums

RESAMPLES_OF_BLOCKS = 1000  # each takes torchmetrics some tenths of a millisecond
_FEWEST_BLOCKS = 20  # fewer blocks tell nothing about those that were not drawn
TOO_MUCH = "resampling so many scores would take too long"
NO_CHANGE = "no sample tells how much one whose prediction changes would change the value"
_NOT_FINITE = "there are too few samples, or the metric is not finite for some resamples"
# Intervals of the quantized model's value, of the drop, and of the ratio of both values.
Intervals = Sequence[Interval | None]


def with_interval(measurement: Measurement, found: Resampling, samples: int) -> Measurement:
    """Measurement of a comparison with the interval of its value.

    Edge case: As it was where the metric has nothing for each sample: a maximum, or an output whose first
    axis is not that of the samples.
    """
    if not isinstance(found, SampleSums) or (len(found.rows) != samples and not found.blocks):
        return measurement
    if _is_hits(measurement.unit, found):
        interval: Interval | None = share_interval(float(found.rows.mean()), len(found.rows))
        return replace(measurement, quantized_interval=interval, quantized_hits=_hits_text(found))
    method: Method = "blocks" if found.blocks else "bootstrap"
    # Samples that are not wholly right show what a flip is like.
    flipped, lacking = found.flipped, int(np.count_nonzero(found.rows[:, 0] != found.rows[:, -1]))
    (interval,) = bootstrap_intervals(
        found.rows,
        lambda sums: (found.of_sums(sums),),
        method=method,
        reach=None
        if flipped is None
        else lambda values, _: [Unseen(float(values[0]) - flipped, 0.0, lacking)],
    )
    return replace(measurement, quantized_interval=interval)


def with_paired_intervals(
    measurement: Measurement, of_float: Resampling, of_quantized: Resampling
) -> Measurement:
    """Measurement with the intervals of its value, its drop, and its ratio if it is an error.

    Edge case: Where there is none, it says why.
    """
    sign = 1 if measurement.higher_is_better else -1
    if isinstance(of_float, SampleSums) and isinstance(of_quantized, SampleSums):
        # Of hits the exact score interval: the bootstrap's is too narrow for few flips.
        if _is_hits(measurement.unit, of_float) and _is_hits(measurement.unit, of_quantized):
            return _with_flips(measurement, of_float, of_quantized)
        # Resampling fewer units understates the spread.
        if of_float.blocks and len(of_float.rows) < _FEWEST_BLOCKS:
            return replace(measurement, no_interval=f"{_FEWEST_BLOCKS} or more blocks of samples are needed")
        return _with(measurement, _of_sums(of_float, of_quantized, sign))
    if isinstance(of_float, Reweighed) and isinstance(of_quantized, Reweighed):
        resamples = resamples_within(of_float.cost + of_quantized.cost)
        if not resamples:
            return replace(measurement, no_interval=TOO_MUCH)
        return _with(measurement, _of_weights(of_float, of_quantized, sign, resamples))
    reason = of_quantized if isinstance(of_quantized, str) else _NOT_FINITE
    return replace(measurement, no_interval=reason)


def _with(measurement: Measurement, intervals: Intervals) -> Measurement:
    of_value, of_drop, of_ratio = map(_with_width, intervals)
    reason = _NOT_FINITE if intervals[1] is None else NO_CHANGE if of_drop is None else ""
    return replace(
        measurement,
        quantized_interval=of_value,
        drop_interval=of_drop,
        ratio_interval=None if measurement.ratio is None else of_ratio,
        no_interval=reason,
    )


def _with_width(interval: Interval | None) -> Interval | None:
    """An interval, or None without width: it would pass any limit, with certainty."""
    return interval if interval is not None and interval.low < interval.high else None


def _with_flips(measurement: Measurement, of_float: SampleSums, of_quantized: SampleSums) -> Measurement:
    flips = count_flips(of_float.rows[:, 0], of_quantized.rows[:, 0])
    return replace(
        measurement,
        quantized_interval=share_interval(float(of_quantized.rows.mean()), len(of_quantized.rows)),
        drop_interval=drop_interval(flips),
        flips=flips,
        quantized_hits=_hits_text(of_quantized),
        float_hits=_hits_text(of_float),
    )


def _of_sums(of_float: SampleSums, of_quantized: SampleSums, sign: int) -> Intervals:
    width = of_float.rows.shape[1]

    def values(sums: Float64Array) -> tuple[Float64Array, ...]:
        value, before = of_quantized.of_sums(sums[..., width:]), of_float.of_sums(sums[..., :width])
        return value, sign * (before - value), value / before

    method: Method = "blocks" if of_quantized.blocks else "bootstrap"
    # Side by side, so that each resample draws the same samples for both models: the drop is of pairs.
    rows = np.hstack([of_float.rows, of_quantized.rows])
    resamples = RESAMPLES_OF_BLOCKS if of_quantized.blocks else RESAMPLES
    reach = _reach(of_float, of_quantized, sign)
    return bootstrap_intervals(rows, values, resamples=resamples, method=method, reach=reach)


def _of_weights(of_float: Reweighed, of_quantized: Reweighed, sign: int, resamples: int) -> Intervals:
    def values(weights: Float64Array) -> Float64Array:
        value, before = of_quantized.of_weights(weights), of_float.of_weights(weights)
        # An interval with a ratio that is not finite is left out, and the report says why.
        ratio = value / before if before else np.nan
        return np.array([value, sign * (before - value), ratio])

    reach = _reach(of_float, of_quantized, sign)
    return reweighed_intervals(of_quantized.units, values, resamples=resamples, reach=reach)


def _reach(of_float: SampleSums | Reweighed, of_quantized: SampleSums | Reweighed, sign: int) -> Reach:
    """Function that tells how far flips that no sample shows may move the value, the drop and the ratio."""
    changed: int | None = None
    if of_float.rows is not None and of_quantized.rows is not None:
        changed = int(np.count_nonzero((of_float.rows != of_quantized.rows).any(axis=1)))

    def reach(values: Sequence[Float64Array], left_out: Sequence[Float64Array]) -> list[Unseen]:
        (value, drop), (left, left_drop) = values[:2], left_out[:2]
        before = float(value + sign * drop)
        lost = moved_by_unseen(float(value), left, of_quantized.flipped)
        gained = moved_by_unseen(before, left + sign * left_drop, of_float.flipped)
        ratios = (gained / abs(before), lost / abs(before)) if before else (0.0, 0.0)
        own = (lost, 0.0) if sign > 0 else (0.0, lost)
        return [Unseen(*own), Unseen(gained, lost, changed), Unseen(*ratios, changed)]

    return reach


def _hits_text(found: SampleSums) -> str:
    return hits_to_text((found.rows[:, 0] == 1).tolist())


def _is_hits(unit: Unit, found: SampleSums) -> bool:
    """Say whether each sample is right or wrong, and the value the share of right ones."""
    is_share = unit == "share" and found.rows.shape[1] == 1 and not found.blocks
    return is_share and bool(np.isin(found.rows, (0.0, 1.0)).all())
