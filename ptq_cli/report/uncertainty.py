"""A measurement gets its intervals: from flips where samples are right or wrong, or else by bootstrap."""

from dataclasses import replace

import numpy as np

from ptq_cli.report.hits import hits_to_text
from ptq_cli.report.intervals.bootstrap import bootstrap_interval
from ptq_cli.report.intervals.interval import Interval
from ptq_cli.report.intervals.score import drop_interval
from ptq_cli.report.intervals.scores import count_flips, paired_interval
from ptq_cli.report.intervals.share import share_interval
from ptq_cli.report.measurement import Measurement, Unit
from ptq_cli.report.metrics.base import SampleSums


def with_interval(measurement: Measurement, found: SampleSums | None, samples: int) -> Measurement:
    """Return the measurement with the interval of its value.

    Edge case:
        As it was where the metric has nothing for each sample: a maximum, or an output whose first axis is
        not that of the samples.

    Example:
        >>> agreement = Measurement("top1_agreement", "share", False, True, quantized_value=1.0)
        >>> hits = SampleSums(np.ones((20, 1)), lambda sums: sums[..., 0] / 20)
        >>> round(with_interval(agreement, hits, 20).quantized_interval.low, 3)
        0.839
    """
    if found is None or len(found.rows) != samples:
        return measurement
    hits = _hits_text(found) if _is_hits(measurement.unit, found) else None
    return replace(measurement, quantized_interval=_interval(measurement.unit, found), quantized_hits=hits)


def with_paired_intervals(
    measurement: Measurement, of_float: SampleSums | None, of_quantized: SampleSums | None
) -> Measurement:
    """Return the measurement with the intervals of its value and of its drop.

    Edge case:
        As it was where the metric has nothing for each sample.

    Example:
        >>> top1 = Measurement("top1", "share", True, True, quantized_value=0.0, float_value=1.0)
        >>> mean = lambda sums: sums[..., 0] / 8
        >>> right, wrong = SampleSums(np.ones((8, 1)), mean), SampleSums(np.zeros((8, 1)), mean)
        >>> found = with_paired_intervals(top1, right, wrong)
        >>> found.flips.lost, found.drop_interval.high, found.quantized_hits
        (8, 1.0, '00')
    """
    if of_float is None or of_quantized is None:
        return measurement
    measured = replace(measurement, quantized_interval=_interval(measurement.unit, of_quantized))
    if not (_is_hits(measurement.unit, of_float) and _is_hits(measurement.unit, of_quantized)):
        interval = paired_interval(
            of_float.rows,
            of_quantized.rows,
            of_quantized.of_sums,
            higher_is_better=measurement.higher_is_better,
        )
        return replace(measured, drop_interval=interval)
    flips = count_flips(of_float.rows[:, 0], of_quantized.rows[:, 0])
    return replace(
        measured,
        drop_interval=drop_interval(flips),
        flips=flips,
        quantized_hits=_hits_text(of_quantized),
        float_hits=_hits_text(of_float),
    )


def _interval(unit: Unit, found: SampleSums) -> Interval | None:
    if _is_hits(unit, found):
        return share_interval(float(found.rows.mean()), len(found.rows))
    return bootstrap_interval(found.rows, found.of_sums)


def _hits_text(found: SampleSums) -> str:
    return hits_to_text((found.rows[:, 0] == 1).tolist())


def _is_hits(unit: Unit, found: SampleSums) -> bool:
    """Say whether each sample is right or wrong, and the value the share of right ones."""
    is_share = unit == "share" and found.rows.shape[1] == 1
    return is_share and bool(np.isin(found.rows, (0.0, 1.0)).all())
