"""A report held against limits, and the samples that an undecided gate needs."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ptq_cli.core.documents import read_document
from ptq_cli.core.errors import GateError, ReportError
from ptq_cli.core.words import did_you_mean
from ptq_cli.evaluation.document.gate_result import LATENCY_GATE, SATURATION_GATE, SIZE_GATE, GateResult, Kind
from ptq_cli.evaluation.document.measurement import Measurement
from ptq_cli.evaluation.document.report_document import Report
from ptq_cli.evaluation.interval import (
    ANYWHERE,
    Interval,
    samples_for_width,
    samples_to_resolve,
    samples_to_resolve_share,
)
from ptq_cli.evaluation.limits import (
    MAX_DROP_FLAG,
    MAX_LATENCY_RATIO_FLAG,
    MIN_FLAG,
    SHARE,
    Bounds,
    absolute_limit,
    bounds_of,
    check_limits,
    percentage,
    size_limit,
)
from ptq_cli.evaluation.report_changes import baseline_summary, regression, require_comparable_baseline
from ptq_cli.recipe.sections import GateSettings, Limit

Measurements = Mapping[str, Measurement]


def decide(report: Report, gate: GateSettings, baseline: Report | None = None) -> Report:
    """Report with the gates of these limits: of metrics, size, latency and saturation.

    Edge case: A value that equals its limit passes; NaN never does. Without an interval, as of one sample, a
    value is in doubt.
    """
    # With the report's own metrics, so that a limit that can never fail is found before it passes.
    check_limits(gate, {metric.name: _bounds(metric) for metric in report.metrics})
    metrics = _by_name(report)
    results = [_drop(_find(name, metrics), limit, report) for name, limit in gate.max_drop.items()]
    results += [_ratio(_find(name, metrics), limit, report) for name, limit in gate.max_ratio.items()]
    results += [_minimum(_find(name, metrics), limit, report) for name, limit in gate.min.items()]
    results += [_drift(name, limit, report) for name, limit in gate.max_drift.items()]
    if gate.max_size:
        size = report.model.quantized_model.bytes
        results.append(
            GateResult(
                metric=SIZE_GATE, kind="max_size", limit=float(size_limit(gate.max_size)), value=float(size)
            )
        )
    if gate.max_latency_ratio is not None:
        results.append(_latency(report, gate.max_latency_ratio))
    if gate.require_portable:
        results.append(_portable(report))
    if baseline is not None:
        # Other data or another model would make the difference, not the change that the gate is about.
        require_comparable_baseline(report, baseline)
        earlier = _by_name(baseline)
        for name, limit in gate.max_regression.items():
            before = _find(name, earlier, "baseline")
            results.append(_regression(_find(name, metrics), before, limit, report.evaluation.samples))
    return replace(
        report,
        gates=tuple(replace(result, strict=gate.strict) for result in results),
        baseline=baseline_summary(baseline) if baseline is not None else None,
    )


def _bounds(metric: Measurement) -> Bounds | None:
    if metric.unit == "share":
        return SHARE
    # A metric of torchmetrics or of the user may have the name of one of ptq's, and other bounds.
    return None if metric.computed_by is not None else bounds_of(metric.name)


def _known(interval: Interval | None, value: float) -> Interval | None:
    """Interval of a measured value, unknown without one; of NaN there is nothing to know."""
    return ANYWHERE if interval is None and not math.isnan(value) else interval


def _by_name(report: Report) -> Measurements:
    return {measurement.name: measurement for measurement in report.metrics}


def _find(name: str, metrics: Measurements, what: str = "report") -> Measurement:
    if name not in metrics:
        raise GateError(
            f"the {what} has no metric '{name}'{did_you_mean(name, list(metrics))}",
            hint=f"it has {', '.join(metrics) or 'none'}; evaluate with the metric, or gate one of these",
        )
    return metrics[name]


def _drop(measurement: Measurement, limit: Limit, report: Report) -> GateResult:
    name, drop, before = measurement.name, measurement.drop, measurement.float_value
    if drop is None or before is None:
        value = f"{measurement.quantized_value:.4g}"
        hint = (
            f"use {MIN_FLAG} {name}=…"
            if measurement.higher_is_better
            else "set a limit on sqnr_db or cosine instead"
        )
        raise GateError(
            f"{name} has no drop, because it compares the models and has one value, {value}", hint=hint
        )
    return _of_drop("max_drop", measurement, limit, absolute_limit(limit, before), report.evaluation.samples)


def _ratio(measurement: Measurement, limit: Limit, report: Report) -> GateResult:
    name = measurement.name
    if measurement.ratio is None:
        if measurement.float_value is None:
            reason, hint = "it compares the models and has one value", f"use {MIN_FLAG} {name}=…"
        elif measurement.higher_is_better:
            reason, hint = "it is better when larger", f"use {MAX_DROP_FLAG} {name}=1%"
        else:
            reason = f"the float model's value is {measurement.float_value:.4g}"
            hint = f"use {MAX_DROP_FLAG} {name}=…"
        raise GateError(f"{name} has no ratio for a limit, because {reason}", hint=hint)
    allowed = absolute_limit(limit, 1.0)
    needed = samples_for_ratio(measurement, allowed, report.evaluation.samples)
    return GateResult(
        metric=name,
        kind="max_ratio",
        limit=allowed,
        value=measurement.ratio,
        interval=_known(measurement.ratio_interval, measurement.ratio),
        samples_needed=needed,
    )


def _minimum(measurement: Measurement, limit: Limit, report: Report) -> GateResult:
    name, least = measurement.name, absolute_limit(limit, 1.0)
    if not measurement.higher_is_better:
        raise GateError(
            f"{MIN_FLAG} {name}={least:g} would pass the worse model: {name} is better when smaller",
            hint=f"set a limit on sqnr_db or cosine instead, such as {MIN_FLAG} sqnr_db=25",
        )
    needed = samples_for_minimum(measurement, least, report.evaluation.samples)
    value = measurement.quantized_value
    interval = _known(measurement.quantized_interval, value)
    return GateResult(
        metric=name, kind="min", limit=least, value=value, interval=interval, samples_needed=needed
    )


def _drift(name: str, limit: Limit, report: Report) -> GateResult:
    known = {item.metric: item for item in report.stream.drifts} if report.stream is not None else {}
    if name not in known:
        raise GateError(
            f"the report does not say how {name} changes from step to step{did_you_mean(name, list(known))}",
            hint=f"it does of {', '.join(known)}" if known else "that is of recordings: see --set data.carry",
        )
    found = known[name]
    return GateResult(
        metric=name,
        kind="max_drift",
        limit=absolute_limit(limit, found.first),
        value=found.loss,
        interval=_known(found.interval, found.loss),
        percent=percentage(limit),
    )


def _latency(report: Report, limit: float) -> GateResult:
    latency = report.times.latency
    if latency is None:
        raise GateError(
            "the report has no latency",
            hint=f"ptq evaluate measures it if it has a limit: {MAX_LATENCY_RATIO_FLAG} {limit:g}",
        )
    return GateResult(
        metric=LATENCY_GATE,
        kind="max_latency_ratio",
        limit=limit,
        value=latency.ratio,
        interval=_known(latency.ratio_interval, latency.ratio),
    )


def _portable(report: Report) -> GateResult:
    if report.saturation is None:
        raise GateError(
            "the report does not say which layers can saturate on x86 processors without VNNI",
            hint="run ptq evaluate again",
        )
    count = len(report.saturation.saturating)
    return GateResult(metric=SATURATION_GATE, kind="require_portable", limit=0.0, value=float(count))


def _regression(measurement: Measurement, before: Measurement, limit: Limit, samples: int) -> GateResult:
    # Paired by sample where both reports hold hits: the interval is narrower than that of two shares.
    compared = regression(before, measurement, samples)
    return _of_drop("max_regression", compared, limit, absolute_limit(limit, before.quantized_value), samples)


def _of_drop(kind: Kind, measurement: Measurement, limit: Limit, allowed: float, samples: int) -> GateResult:
    worse = measurement.drop if measurement.drop is not None else 0.0
    return GateResult(
        metric=measurement.name,
        kind=kind,
        limit=allowed,
        value=worse,
        interval=_known(measurement.drop_interval, worse),
        samples_needed=samples_for_drop(measurement, allowed, samples),
        percent=percentage(limit),
    )


def samples_for_drop(measurement: Measurement, limit: float, samples: int) -> int | None:
    """About how many samples it takes until the interval of the drop ends at ``limit``."""
    if measurement.flips is not None:
        return samples_to_resolve(measurement.flips, limit)
    return _samples_for(measurement.drop, measurement.drop_interval, limit, samples)


def samples_for_ratio(measurement: Measurement, limit: float, samples: int) -> int | None:
    """About how many samples it takes until the interval of the ratio ends at ``limit``."""
    return _samples_for(measurement.ratio, measurement.ratio_interval, limit, samples)


def samples_for_minimum(measurement: Measurement, limit: float, samples: int) -> int | None:
    """About how many samples it takes until the interval of the value ends at ``limit``."""
    value, interval = measurement.quantized_value, measurement.quantized_interval
    # A share needs no scaling of its interval: its own score statistic tells the number directly.
    if interval is not None and interval.method == "wilson":
        return samples_to_resolve_share(value, limit)
    return _samples_for(value, interval, limit, samples)


def _samples_for(value: float | None, interval: Interval | None, limit: float, samples: int) -> int | None:
    if value is None or interval is None:
        return None
    return samples_for_width(samples, value, interval, limit)


def read_baseline(gate: GateSettings) -> Report | None:
    """Baseline that a gate names, or None if it names none."""
    if gate.baseline is None:
        return None
    try:
        return read_document(Report, Path(gate.baseline))
    except ReportError as error:
        raise ReportError(f"baseline {error.message}", hint=error.hint) from error
