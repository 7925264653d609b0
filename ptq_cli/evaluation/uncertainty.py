"""A measurement gets its intervals: from flips where samples are right or wrong, or else by bootstrap."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ptq_cli.core.errors import MetricError
from ptq_cli.core.tensors import Array, format_shape
from ptq_cli.evaluation.bootstrap import (
    RESAMPLES,
    Float64Array,
    bootstrap_intervals,
    count_flips,
    resamples_within,
    reweighed_intervals,
)
from ptq_cli.evaluation.document.measurement import Measurement, Unit, hits_to_text
from ptq_cli.evaluation.interval import Interval, Method, drop_interval, share_interval
from ptq_cli.evaluation.metrics.base import PairMetric, Resampling, Reweighed, SampleSums, State, below
from ptq_cli.evaluation.metrics.metric_registry import PAIR_METRICS
from ptq_cli.evaluation.metrics.value_errors import WorstChannelSqnr
from ptq_cli.evaluation.model_outputs import Place
from ptq_cli.evaluation.streams import Indices, drawn_by
from ptq_cli.evaluation.unseen_flips import Reach, Unseen, moved_by_unseen

RESAMPLES_OF_BLOCKS = 1000  # each takes torchmetrics some tenths of a millisecond

FEWEST_BLOCKS = 20  # of fewer nothing is known about those that were not drawn

TOO_MUCH = "resampling so many scores would take too long"
NO_CHANGE = "no sample tells how much one whose prediction changes would change the value"
NOT_FINITE = "there are too few samples, or the metric is not finite for some resamples"

Intervals = Sequence[Interval | None]
"""Of the quantized model's value, of the drop, and of the ratio of both values."""


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
        if of_float.blocks and len(of_float.rows) < FEWEST_BLOCKS:
            return replace(measurement, no_interval=f"{FEWEST_BLOCKS} or more blocks of samples are needed")
        return _with(measurement, _of_sums(of_float, of_quantized, sign))
    if isinstance(of_float, Reweighed) and isinstance(of_quantized, Reweighed):
        resamples = resamples_within(of_float.cost + of_quantized.cost)
        if not resamples:
            return replace(measurement, no_interval=TOO_MUCH)
        return _with(measurement, _of_weights(of_float, of_quantized, sign, resamples))
    reason = of_quantized if isinstance(of_quantized, str) else NOT_FINITE
    return replace(measurement, no_interval=reason)


def _with(measurement: Measurement, intervals: Intervals) -> Measurement:
    of_value, of_drop, of_ratio = map(_with_width, intervals)
    reason = NOT_FINITE if intervals[1] is None else NO_CHANGE if of_drop is None else ""
    return replace(
        measurement,
        quantized_interval=of_value,
        drop_interval=of_drop,
        ratio_interval=None if measurement.ratio is None else of_ratio,
        no_interval=reason,
    )


def _with_width(interval: Interval | None) -> Interval | None:
    """Return None for an interval without width: it would pass any limit, with certainty."""
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
    """Return how far flips that no sample shows may move the value, the drop and the ratio."""
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


# The label-free metrics of every output of a quantized model; which apply is settled on the first batch.


LEFT_OUT = "left out"  # stands in the state where an output's metrics would: why it has none


class Comparisons:
    """Compares a quantized model's outputs with the float model's.

    An output of ``varying`` size is left out from the batch on in which it cannot be compared.
    """

    def __init__(self, output_names: Sequence[str], varying: frozenset[str] = frozenset()) -> None:
        self._output_names = output_names
        self._varying = varying
        self._left_out: dict[int, str] = {}
        self._by_output: list[dict[str, PairMetric]] = []
        self._first = 0

    def update(
        self, float_outputs: Sequence[Array], quantized_outputs: Sequence[Array], place: Place
    ) -> None:
        """Count one batch."""
        samples = place.batch.size
        if not self._by_output:
            self._by_output = [
                {} if index in self._left_out else _applicable(output, samples)
                for index, output in enumerate(float_outputs)
            ]
            for _, metric in self._by_prefix():
                metric.start_at(self._first)
        for index, (name, metrics, expected, found) in enumerate(
            zip(self._output_names, self._by_output, float_outputs, quantized_outputs, strict=True)
        ):
            if name in self._varying and not _comparable(metrics, expected, found, samples):
                shapes = f"{format_shape(expected.shape)} in float and {format_shape(found.shape)} quantized"
                self._left_out.setdefault(index, f"it has shape {shapes}, at {place.whole()}")
                metrics.clear()
            for metric in metrics.values():
                if not metric.accepts(expected, samples):
                    raise MetricError(
                        f"output '{name}' has a different shape at {place.whole()} than in the first batch",
                        hint="in every batch, an output must have the same rank, with the samples on axis 0",
                    )
                metric.update(expected, found)

    def measurements(self, samples: int, recordings: Indices | None = None) -> list[Measurement]:
        """Return what was measured, output by output: under the plain name for the first.

        Intervals are of drawn ``recordings`` where the samples are steps of them.
        """
        return [
            with_interval(
                Measurement(
                    name=self._name(name, index),
                    unit=metric.unit,
                    needs_labels=False,
                    higher_is_better=metric.higher_is_better,
                    quantized_value=metric.compute(),
                    output=self._output_names[index],
                    channel=metric.channel if isinstance(metric, WorstChannelSqnr) else None,
                ),
                drawn_by(recordings, metric.resampling(), samples),
                samples,
            )
            for index, metrics in enumerate(self._by_output)
            for name, metric in metrics.items()
        ]

    def _name(self, metric: str, index: int) -> str:
        return metric if index == 0 else f"{metric}[{self._output_names[index]}]"

    @property
    def left_out(self) -> dict[str, str]:
        """Outputs that could not be compared, with the reason."""
        return {self._output_names[index]: reason for index, reason in sorted(self._left_out.items())}

    def named(self, metric: str) -> dict[str, PairMetric]:
        """A metric of each output that has it, by its name in a report."""
        found = enumerate(self._by_output)
        return {self._name(metric, index): metrics[metric] for index, metrics in found if metric in metrics}

    def state(self) -> State:
        """Return what a checkpoint holds."""
        reasons = {
            f"{index}/{LEFT_OUT}/why": np.frombuffer(reason.encode(), np.uint8)
            for index, reason in self._left_out.items()
        }
        return reasons | {
            f"{index}/{name}/{key}": array
            for index, metrics in enumerate(self._by_output)
            for name, metric in metrics.items()
            for key, array in metric.state().items()
        }

    def start_at(self, sample: int) -> None:
        """Take the first sample that comes for this one of the set."""
        self._first = sample

    def join(self, states: Sequence[State]) -> None:
        """Go on from what was compared in all parts of a set, in their order."""
        for state in states:
            why = {path: array for path, array in state.items() if path.split("/")[1] == LEFT_OUT}
            for path, array in why.items():
                self._left_out.setdefault(int(path.split("/")[0]), array.tobytes().decode())
        # What one part leaves out is left out of all.
        states = [
            {path: array for path, array in state.items() if int(path.split("/")[0]) not in self._left_out}
            for state in states
        ]
        self._by_output = self._known(states[0])
        kinds = {frozenset(tuple(path.split("/")[:2]) for path in state) for state in states}
        try:
            if len(kinds) != 1:
                raise ValueError("not all have the same metrics")  # noqa: TRY301 - as what the metrics raise
            for prefix, metric in self._by_prefix():
                metric.join([below(state, prefix) for state in states])
        except ValueError as error:
            raise MetricError(
                f"an output's layout differs between batches, so the parts do not fit each other: {error}",
                hint="evaluate all samples in one process, or with --batch-size 1",
            ) from error

    def _known(self, state: State) -> list[dict[str, PairMetric]]:
        known = {tuple(path.split("/")[:2]) for path in state}
        return [
            {name: metric() for name, metric in PAIR_METRICS.items() if (str(index), name) in known}
            for index in range(len(self._output_names) if state else 0)
        ]

    def _by_prefix(self) -> Iterator[tuple[str, PairMetric]]:
        for index, metrics in enumerate(self._by_output):
            for name, metric in metrics.items():
                yield f"{index}/{name}/", metric


def _comparable(metrics: dict[str, PairMetric], expected: Array, found: Array, samples: int) -> bool:
    """Say whether both models' output of a batch have one shape, which all metrics of it can take."""
    return expected.shape == found.shape and all(item.accepts(expected, samples) for item in metrics.values())


def _applicable(output: Array, samples: int) -> dict[str, PairMetric]:
    return {name: metric() for name, metric in PAIR_METRICS.items() if metric.accepts(output, samples)}
