"""Changes from one report to another: of metrics, facts and layers, and whether the two can be compared."""

from dataclasses import dataclass
from pathlib import PurePath
from typing import Annotated, ClassVar

from ptq_cli.core.errors import BaselineError
from ptq_cli.evaluation.document.analysis_document import Analysis
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
