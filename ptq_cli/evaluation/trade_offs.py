"""Several quantized models side by side: what each keeps of the accuracy, and what it takes for it."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

from ptq_cli.core.errors import UsageError
from ptq_cli.core.known_names import did_you_mean
from ptq_cli.evaluation.document.gate_result import Verdict
from ptq_cli.evaluation.document.measurement import Measurement, Unit
from ptq_cli.evaluation.document.report_document import Report
from ptq_cli.evaluation.interval import Interval

T = TypeVar("T")
COMPARISON = "sqnr_db"  # what models are compared by where no metric has a value of the float model


@dataclass(frozen=True, kw_only=True)
class ComparedModel:
    """One quantized model among several."""

    name: Annotated[
        str, "What it is called here: the shortest part of the report's path that tells it from the others."
    ]
    verdict: Annotated[Verdict, "Of its report."]
    value: Annotated[float, "Of the metric."]
    interval: Annotated[
        Interval | None, "Where value lies, the float model's taken as certain; None if nothing tells."
    ]
    drop: Annotated[float | None, "How much worse than the float model it is; None for a comparison of both."]
    bytes: Annotated[int, "Size of its file."]
    size_ratio: Annotated[float, "Bytes over the size of its float file, as in its report."]
    latency_ratio: Annotated[float | None, "Its time over its float model's; None if it was not measured."]
    best_by_size: Annotated[bool, "No other model is as good and smaller, or as small and better."]
    best_by_time: Annotated[bool, "No other model is as good and faster, or as fast and better."]


@dataclass(frozen=True, kw_only=True)
class TradeOffs:
    """Several quantized models, by one metric."""

    metric: Annotated[str, "Its name."]
    unit: Annotated[Unit, "Of its values."]
    higher_is_better: Annotated[bool, "False for errors."]
    float_value: Annotated[
        float | None, "The float model's value; None for a comparison of both, or if the models differ in it."
    ]
    float_bytes: Annotated[int | None, "Size of the float file; None if the models differ in it."]
    notes: Annotated[tuple[str, ...], "What makes the values of different reports differ besides the models."]
    models: Annotated[tuple[ComparedModel, ...], "In the order of the reports."]


def trade_offs(reports: Sequence[Report], names: Sequence[str], metric: str | None = None) -> TradeOffs:
    """Accuracy, size and time of each model, and which no other beats.

    They are judged by ``metric``, or by the first that all reports have, with labels if possible.
    """
    chosen = _measured(reports, names, metric)
    costs = [float(report.model.quantized_model.bytes) for report in reports]
    times = [report.times.latency_ratio for report in reports]
    values = [_goodness(found) for found in chosen]
    smallest, fastest = best(costs, values), best(times, values)
    return TradeOffs(
        metric=chosen[0].name,
        unit=chosen[0].unit,
        higher_is_better=chosen[0].higher_is_better,
        float_value=_same([found.float_value for found in chosen]),
        float_bytes=_same([report.model.float_bytes for report in reports]),
        notes=_notes(reports),
        models=tuple(
            ComparedModel(
                name=name,
                verdict=report.verdict,
                value=found.quantized_value,
                interval=_interval(found),
                drop=found.drop,
                bytes=report.model.quantized_model.bytes,
                size_ratio=1 / report.model.size_ratio,
                latency_ratio=time,
                best_by_size=small,
                best_by_time=fast,
            )
            for report, name, found, time, small, fast in zip(
                reports, names, chosen, times, smallest, fastest, strict=True
            )
        ),
    )


def best(costs: Sequence[float | None], values: Sequence[float]) -> tuple[bool, ...]:
    """Candidates on the Pareto front: no other is at least as good in both and better in one.

    Less of the costs is better, of which three digits count, as a reader sees them, and more of the values. A
    cost of None and a value of NaN take no part.

    Example:
        >>> best([1.0, 2.0, 3.0, 2.001, None], [0.7, 0.9, 0.8, 0.9, 1.0])
        (True, True, False, True, False)
    """
    pairs = [
        None if cost is None or math.isnan(value) else (float(f"{cost:.3g}"), value)
        for cost, value in zip(costs, values, strict=True)
    ]
    return tuple(
        pair is not None
        and not any(
            other is not None and other != pair and other[0] <= pair[0] and other[1] >= pair[1]
            for other in pairs
        )
        for pair in pairs
    )


def _measured(reports: Sequence[Report], names: Sequence[str], metric: str | None) -> tuple[Measurement, ...]:
    """Metric's measurement in each report."""
    tables = [{found.name: found for found in report.metrics} for report in reports]
    shared = [name for name in tables[0] if all(name in table for table in tables)]
    if metric is not None:
        for table, name in zip(tables, names, strict=True):
            if metric not in table:
                raise UsageError(
                    f"the report '{name}' has no metric '{metric}'{did_you_mean(metric, shared)}",
                    hint=f"all of these reports have: {', '.join(shared) or 'no metric'}",
                )
        return tuple(table[metric] for table in tables)
    if not shared:
        raise UsageError(
            "these reports have no metric in common", hint="evaluate the models again with the same --metric"
        )
    labeled = (name for name in shared if tables[0][name].drop is not None)
    chosen = next(labeled, COMPARISON if COMPARISON in shared else shared[0])
    return tuple(table[chosen] for table in tables)


def _goodness(found: Measurement) -> float:
    return found.quantized_value if found.higher_is_better else 0.0 - found.quantized_value


def _interval(found: Measurement) -> Interval | None:
    """Interval of the quantized model's value."""
    drop = found.drop_interval
    if drop is None or found.float_value is None:
        return found.quantized_interval
    sign = 1.0 if found.higher_is_better else -1.0
    ends = sorted(found.float_value - sign * end for end in (drop.low, drop.high))
    return Interval(ends[0], ends[1], drop.method)


def _same(values: Sequence[T]) -> T | None:
    return values[0] if all(value == values[0] for value in values) else None


def _notes(reports: Sequence[Report]) -> tuple[str, ...]:
    latencies = [report.times.latency for report in reports]
    differing = (
        (
            "the reports used different data, which also changes the metrics",
            _differ(report.evaluation.data_digest for report in reports),
        ),
        (
            "the reports are about different models",
            # A recovery rung may write the float file again.
            _differ(report.model.float_model.sha256 for report in reports)
            and _differ(report.model.source for report in reports),
        ),
        (
            "the latencies are of different batch sizes or numbers of threads",
            _differ((found.batch_size, found.threads) for found in latencies if found is not None),
        ),
    )
    return tuple(note for note, differs in differing if differs)


def _differ(values: Iterable[object]) -> bool:
    return len(set(values)) > 1
