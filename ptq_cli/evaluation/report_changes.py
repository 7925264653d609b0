"""Reports beside each other: changes from one to another, and what each of several keeps and takes."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Annotated, ClassVar, TypeVar

from ptq_cli.core.errors import BaselineError, UsageError
from ptq_cli.core.words import did_you_mean
from ptq_cli.evaluation.document.analysis_document import Analysis
from ptq_cli.evaluation.document.gate_result import Verdict
from ptq_cli.evaluation.document.measurement import Measurement, Unit, flips_between
from ptq_cli.evaluation.document.report_document import BaselineSummary, LayerEntry, ModelSummary, Report
from ptq_cli.evaluation.interval import Flips, Interval, drop_interval


def require_comparable_baseline(report: Report, baseline: Report) -> None:
    """Refuse a baseline that says nothing about the report.

    A model is the same if its float graph is, or the name of its file: a baseline from before a new training
    is what one wants to compare with.
    """
    require_same_model(report.model, baseline.model)
    if baseline.evaluation.data_digest != report.evaluation.data_digest:
        raise BaselineError(
            f"the baseline was measured on different data: {baseline.evaluation.samples} samples of "
            f"'{baseline.evaluation.source}' whose digest differs",
            hint="evaluate the baseline's model again on this data",
        )


def require_same_model(model: ModelSummary, earlier: ModelSummary) -> None:
    """Refuse a baseline of another model."""
    name, other = PurePath(model.source).name, PurePath(earlier.source).name
    if name != other and model.float_model.sha256 != earlier.float_model.sha256:
        raise BaselineError(
            f"the baseline is for a different model: '{other}', not '{name}', and its float graph differs",
            hint="pass a report of the same model, or make one",
        )


def baseline_summary(baseline: Report) -> BaselineSummary:
    """Date and model of a baseline, for a later report."""
    return BaselineSummary(baseline.created, baseline.model.quantized_model.sha256)


def regression(before: Measurement, after: Measurement, samples: int) -> Measurement:
    """Change of one metric of the quantized model, as if the earlier model were the float one.

    Edge case: There is no interval where the reports do not say which samples are right: of an SQNR, a
    cosine, or a report of format version 1.
    Source: Tango 1998 for the interval, see ``drop_interval``.
    """
    flips = None
    if before.quantized_hits is not None and after.quantized_hits is not None:
        flips = flips_between(before.quantized_hits, after.quantized_hits, samples)
    return Measurement(
        name=after.name,
        unit=after.unit,
        needs_labels=after.needs_labels,
        higher_is_better=after.higher_is_better,
        quantized_value=after.quantized_value,
        float_value=before.quantized_value,
        drop_interval=drop_interval(flips) if flips is not None else None,
        flips=flips,
    )


WORSE_BY_DB = 0.5  # a tenth of a bit: below it, a layer is as it was


@dataclass(frozen=True, kw_only=True)
class MetricChange:
    """One metric of the quantized models of two reports."""

    DERIVED: ClassVar[tuple[str, ...]] = ("worse_by",)

    name: Annotated[str, "The metric's."]
    unit: Annotated[Unit, "Of its values."]
    higher_is_better: Annotated[bool, "False for errors."]
    before: Annotated[float | None, "The first report's value, or None if it has none."]
    after: Annotated[float | None, "The second's."]
    interval: Annotated[
        Interval | None, "Where worse_by lies, where both say which of the same samples are right."
    ] = None
    flips: Annotated[Flips | None, "These samples."] = None

    @property
    def worse_by(self) -> float | None:
        """How much worse the second report's value is, in the metric's unit; None if one is missing."""
        if self.before is None or self.after is None:
            return None
        change = self.before - self.after
        return change if self.higher_is_better else 0.0 - change  # not -0.0


@dataclass(frozen=True)
class Change:
    """Something that differs, as text."""

    what: Annotated[str, "Its name."]
    before: Annotated[str, "The first report's value; empty if there is none."]
    after: Annotated[str, "The second's."]


@dataclass(frozen=True)
class LayerLoss:
    """A layer whose output is farther from the float model's than it was."""

    DERIVED: ClassVar[tuple[str, ...]] = ("worse_by",)

    name: Annotated[str, "The node's name."]
    op: Annotated[str, "Its operator."]
    before: Annotated[float, "SQNR of its output in the first quantized model. Decibels."]
    after: Annotated[float, "In the second."]

    @property
    def worse_by(self) -> float:
        """How many decibels it lost."""
        return self.before - self.after


@dataclass(frozen=True, kw_only=True)
class ReportChanges:
    """What changed between two reports."""

    same_samples: Annotated[
        bool, "Whether both were measured on the same data; otherwise metrics differ by that, too."
    ]
    metrics: Annotated[tuple[MetricChange, ...], "Every metric of either."]
    bytes_before: Annotated[int, "Size of the first quantized model."]
    bytes_after: Annotated[int, "Of the second."]
    changes: Annotated[tuple[Change, ...], "Models, settings, data and versions that differ."]
    layers: Annotated[tuple[Change, ...], "Layers that run elsewhere now, or for another reason."]
    latency_before: Annotated[
        float | None, "The first quantized model's time over its float model's; None if not measured."
    ] = None
    latency_after: Annotated[float | None, "The second's."] = None
    worse_layers: Annotated[
        tuple[LayerLoss, ...] | None,
        "Layers that lost more than half a decibel, the worst first; None without an analysis of both.",
    ] = None


def compare_reports(
    before: Report, after: Report, analyses: tuple[Analysis, Analysis] | None = None
) -> ReportChanges:
    """Changes between two reports; metrics in the order of the first, those that are new at the end.

    Edge case: Reports of different models or data are compared as well: what differs is listed.
    """
    same = before.evaluation.data_digest == after.evaluation.data_digest
    return ReportChanges(
        same_samples=same,
        metrics=_metrics(before, after, same_samples=same),
        bytes_before=before.model.quantized_model.bytes,
        bytes_after=after.model.quantized_model.bytes,
        changes=_differing(_facts(before), _facts(after)),
        layers=_differing(_placement(before), _placement(after)),
        latency_before=before.times.latency_ratio,
        latency_after=after.times.latency_ratio,
        worse_layers=_worse_layers(*analyses) if analyses is not None else None,
    )


def _worse_layers(before: Analysis, after: Analysis) -> tuple[LayerLoss, ...]:
    """Layers that lost more than half a decibel; both measured their outputs as the model runs."""
    old = {layer.name: layer.sqnr_accumulated_db for layer in before.layers}
    found = []
    for layer in after.layers:
        was, now = old.get(layer.name), layer.sqnr_accumulated_db
        if was is not None and now is not None and was - now > WORSE_BY_DB:
            found.append(LayerLoss(layer.name, layer.op, was, now))
    return tuple(sorted(found, key=lambda loss: -loss.worse_by))


def _metrics(before: Report, after: Report, *, same_samples: bool) -> tuple[MetricChange, ...]:
    old, new = ({metric.name: metric for metric in report.metrics} for report in (before, after))
    found = []
    for name in dict.fromkeys([*old, *new]):
        known = new.get(name) or old[name]
        is_paired = same_samples and name in old and name in new
        paired = regression(old[name], new[name], after.evaluation.samples) if is_paired else None
        found.append(
            MetricChange(
                name=name,
                unit=known.unit,
                higher_is_better=known.higher_is_better,
                before=old[name].quantized_value if name in old else None,
                after=new[name].quantized_value if name in new else None,
                interval=paired.drop_interval if paired is not None else None,
                flips=paired.flips if paired is not None else None,
            )
        )
    return tuple(found)


def _facts(report: Report) -> dict[str, str]:
    model, calibration, evaluation = report.model, report.calibration, report.evaluation
    facts = {
        "model": model.source,
        "float model": model.float_model.sha256,
        "quantized model": model.quantized_model.sha256,
        "target": report.target,
        "amax": report.amax.text,
        "calibration": f"{calibration.method}, {calibration.samples} samples",
        "calibration data": calibration.data_digest,
        "evaluation": f"{evaluation.source}, {evaluation.samples} samples",
        "evaluation data": evaluation.data_digest,
    }
    return facts | {f"version of {name}": version for name, version in sorted(report.versions.items())}


def _placement(report: Report) -> dict[str, str]:
    return {layer.name: layer.placement for layer in report.layers}


def _differing(before: dict[str, str], after: dict[str, str]) -> tuple[Change, ...]:
    names = dict.fromkeys([*before, *after])
    found = (Change(name, before.get(name, ""), after.get(name, "")) for name in names)
    return tuple(change for change in found if change.before != change.after)


@dataclass(frozen=True, kw_only=True)
class LayerDifference:
    """A layer of either model."""

    name: str
    op: str
    before: LayerEntry | None
    after: LayerEntry | None
    sqnr_before: float | None = None
    sqnr_after: float | None = None

    @property
    def has_moved(self) -> bool:
        """Whether it runs elsewhere, for another reason, or is in one model only."""
        before, after = self.before, self.after
        return before is None or after is None or before.placement != after.placement


def layer_differences(
    before: Report, after: Report, analyses: tuple[Analysis, Analysis] | None = None
) -> tuple[LayerDifference, ...]:
    """Each layer of two reports, in the second's order; those that only the first has come last."""
    old, new = ({layer.name: layer for layer in report.layers} for report in (before, after))
    first, second = map(_sqnr, analyses) if analyses is not None else ({}, {})
    return tuple(
        LayerDifference(
            name=name,
            op=(new.get(name) or old[name]).op,
            before=old.get(name),
            after=new.get(name),
            sqnr_before=first.get(name),
            sqnr_after=second.get(name),
        )
        for name in dict.fromkeys([*new, *old])
    )


def _sqnr(analysis: Analysis) -> dict[str, float | None]:
    return {layer.name: layer.sqnr_accumulated_db for layer in analysis.layers}


_T = TypeVar("_T")
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
    drop = found.drop_interval
    if drop is None or found.float_value is None:
        return found.quantized_interval
    sign = 1.0 if found.higher_is_better else -1.0
    ends = sorted(found.float_value - sign * end for end in (drop.low, drop.high))
    return Interval(ends[0], ends[1], drop.method)


def _same(values: Sequence[_T]) -> _T | None:
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
