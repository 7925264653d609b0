"""A report as tables of plain text, which the terminal, Markdown and the page share.

Every number becomes text here and nowhere else. Text that comes from the model is passed on unchanged: the
renderer escapes it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ptq_cli.core.words import format_bytes
from ptq_cli.evaluation.document.measurement import Measurement, Unit
from ptq_cli.evaluation.document.report_document import Report
from ptq_cli.evaluation.interval import CONFIDENCE, TOLERANCE, Interval
from ptq_cli.evaluation.report_changes import WORSE_BY_DB, MetricChange, ReportChanges

Row = tuple[str, ...]

MAX_DECIMALS = 9
MOST_CLASSES = 20  # classes that a table shows at most; report.json has all of them
INTERVAL = f"{CONFIDENCE:.0%}".replace("%", " % interval")  # header of a column of intervals


@dataclass(frozen=True)
class Table:
    """A header, and rows with as many cells as the header."""

    header: Row
    rows: tuple[Row, ...]


def format_value(value: float, unit: Unit, decimals: int | None = None) -> str:
    """Write a metric's value.

    Units: a share is written as a percentage, decibels unchanged, a number with four significant digits.

    Example:
        >>> format_value(0.8213, "share"), format_value(31.517, "decibel"), format_value(0.0123456, "number")
        ('82.13 %', '31.52 dB', '0.01235')
    """
    if unit == "number":
        if decimals is not None:
            return f"{value:.{decimals}f}"
        # A cosine of 0.99998 is not 1, and the reader looks for the difference.
        return f"{value:.4g}" if f"{value:.4g}" != "1" or value == 1 else f"{value:.6f}"
    shown, suffix = (100 * value, "%") if unit == "share" else (value, "dB")
    return f"{shown:.{2 if decimals is None else decimals}f} {suffix}"


def format_drop(drop: float, unit: Unit, decimals: int | None = None) -> str:
    """Write a drop. The drop of a share is in percentage points; a gain has a minus sign.

    Example:
        >>> format_drop(0.0102, "share"), format_drop(-0.002, "share"), format_drop(0.5, "number")
        ('1.02 points', '-0.20 points', '0.5')
    """
    return format_value(drop, unit, decimals).replace(" %", " points")


def format_interval(interval: Interval | None, unit: Unit) -> str:
    """Write both ends of an interval, without the unit, which the column beside it shows.

    Edge case: Without an interval, or if it is the infinite value alone, an empty text. With unit
    ``"number"``, as many digits as the ends need to differ.

    Example:
        >>> format_interval(Interval(-0.002, 0.0051, "score"), "share"), format_interval(None, "share")
        ('-0.20 to 0.51', '')
        >>> format_interval(Interval(0.99871, 0.99874, "bootstrap"), "number")
        '0.99871 to 0.99874'
    """
    if interval is None or interval.low == interval.high in (math.inf, -math.inf):
        return ""
    ends = (interval.low, interval.high)
    if unit != "number":
        low, high = (format_value(end, unit).partition(" ")[0] for end in ends)
        return f"{low} to {high}"
    digits = 4
    while digits < MAX_DECIMALS and ends[0] != ends[1] and f"{ends[0]:.{digits}g}" == f"{ends[1]:.{digits}g}":
        digits += 1
    return f"{ends[0]:.{digits}g} to {ends[1]:.{digits}g}"


def share_of_float(size: int, float_size: int) -> str:
    """Write the size of the quantized file as a share of the float file's."""
    return f"{100 * size / float_size:.1f} % of float"


def verdict_line(report: Report) -> str:
    """Verdict, and how many gates failed."""
    failed, total = sum(not gate.passed for gate in report.gates), len(report.gates)
    doubtful = sum(gate.verdict == "undecided" for gate in report.gates)
    gates = f"gate{'' if total == 1 else 's'}"
    text = {
        "pass": f"PASS: {total} {gates} passed",
        "fail": f"FAIL: {failed} of {total} {gates} failed",
        "no gate": "no gate: no limit was set",
    }[report.verdict]
    return f"{text}; {doubtful} undecided" if doubtful else text


def metric_labels(report: Report) -> dict[str, str]:
    """Return how each metric is called in tables: with its output, if there are several that were judged.

    Edge case: A name such as ``top1[logits]`` has its output already.
    """
    several = len({metric.output for metric in report.metrics}) > 1
    return {
        metric.name: f"{metric.name} ({metric.output})"
        if several and metric.output is not None and not metric.name.endswith(f"[{metric.output}]")
        else metric.name
        for metric in report.metrics
    }


def label_table(report: Report) -> Table:
    """Each metric for both models, and for PyTorch if evaluated, with the drop and its interval."""
    with_pytorch = any(metric.pytorch_value is not None for metric in report.metrics)
    rows, labels = [], metric_labels(report)
    for metric in report.metrics:
        if metric.float_value is not None and metric.drop is not None:
            values = (metric.float_value, metric.quantized_value)
            texts = [format_value(value, metric.unit) for value in values]
            if with_pytorch:
                value = metric.pytorch_value
                texts.insert(0, "" if value is None else format_value(value, metric.unit))
            interval = format_interval(metric.drop_interval, metric.unit)
            rows.append((labels[metric.name], *texts, format_drop(metric.drop, metric.unit), interval))
    models = ("PyTorch", "float", "quantized") if with_pytorch else ("float", "quantized")
    return Table(("metric", *models, "drop", INTERVAL), tuple(rows))


def no_interval_lines(report: Report) -> list[str]:
    """A line for each metric whose drop has no interval, with the reason."""
    return [
        f"note: the drop of {metric.name} has no interval: {metric.no_interval}"
        for metric in report.metrics
        if metric.no_interval
    ]


def class_table(report: Report, most: int = MOST_CLASSES) -> Table:
    """Classes of a metric that has them, the largest drop first, at most ``most`` of them."""
    classes = [found for metric in report.metrics for found in metric.by_class]
    rows = tuple(
        (
            f"{found.label} {found.name}".rstrip(),
            str(found.flips.samples),
            format_value(found.float_value, "share"),
            format_value(found.quantized_value, "share"),
            format_drop(found.drop, "share"),
            format_interval(found.drop_interval, "share"),
        )
        for found in sorted(classes, key=lambda found: -found.drop)[:most]
    )
    return Table(("class", "samples", "float", "quantized", "drop", INTERVAL), rows)


def comparison_table(report: Report) -> Table:
    """Metrics that compare the two models' outputs, with their intervals."""
    labels = metric_labels(report)
    rows = tuple(
        (
            labels[metric.name],
            format_value(metric.quantized_value, metric.unit)
            + (f", {metric.channel}" if metric.channel is not None else ""),
            format_interval(metric.quantized_interval, metric.unit),
        )
        for metric in report.metrics
        if metric.float_value is None
    )
    return Table(("against float", "value", INTERVAL), rows)


def size_table(report: Report) -> Table:
    """Both files with their sizes, and the quantized file's size as a share of the float file's.

    The float file is the user's own, if it is ONNX, and otherwise the one that was made of it.
    """
    model, quantized = report.model, report.model.quantized_model
    share = share_of_float(quantized.bytes, model.float_bytes)
    rows = (
        ("float", model.float_name, format_bytes(model.float_bytes), ""),
        ("quantized", quantized.name, format_bytes(quantized.bytes), share),
    )
    return Table(("model", "file", "size", "share"), rows)


def placement_line(report: Report) -> str:
    """Return how many layers run on integers and how many stay float."""
    integer, floating = report.quantized_layers, report.float_layers
    runs = "layer runs" if integer == 1 else "layers run"
    return f"{integer} {runs} on integers, {floating} stay{'s' if floating == 1 else ''} float"


def saturation_lines(report: Report) -> list[str]:
    """A line about the layers that can saturate on x86 processors without VNNI, if that is known."""
    return [report.saturation.text] if report.saturation is not None and report.saturation.layers else []


def level_lines(report: Report) -> list[str]:
    """A line about the accuracy levels that a model with weights in blocks was measured at, if any.

    Example:
        >>> from types import SimpleNamespace
        >>> from ptq_cli.evaluation.document.measurement import AccuracyLevel
        >>> levels = [AccuracyLevel(4, True, {"sqnr_db": 30.0}), AccuracyLevel(0, False, {"sqnr_db": 31.25})]
        >>> level_lines(SimpleNamespace(accuracy_levels=levels, metrics=()))
        ['measured at accuracy level 4 of MatMulNBits; at level 0: sqnr_db 31.25']
    """
    units = {item.name: item.unit for item in report.metrics}
    said: list[str] = []
    for item in report.accuracy_levels:
        if item.reported:
            said.insert(0, f"measured at accuracy level {item.level} of MatMulNBits")
            continue
        values = (
            f"{name} {format_value(value, units[name]) if name in units else f'{value:g}'}"
            for name, value in item.values.items()
        )
        said.append(f"at level {item.level}: {', '.join(values)}")
    return ["; ".join(said)] if said else []


def placement_table(report: Report) -> Table:
    """Every layer with what it runs on and why: float layers first, otherwise in the model's order."""
    layers = sorted(report.layers, key=lambda layer: layer.integer)
    rows = ((layer.name, layer.op, "integer" if layer.integer else "float", layer.reason) for layer in layers)
    return Table(("layer", "op", "runs on", "reason"), tuple(rows))


def origin_table(report: Report) -> Table:
    """Return what is needed to make the report again: versions, settings, data, hashes."""
    calibrated, seen, noun = report.calibration.samples, report.evaluation.samples, report.evaluation.noun
    rows = (
        ("model", f"{report.model.source}, float {_short(report.model.float_model.sha256)}"),
        ("quantized", _short(report.model.quantized_model.sha256)),
        ("target", report.target),
        ("amax", report.amax.text),
        (
            "calibration",
            f"{report.calibration.method}, {calibrated} {noun(calibrated)}, "
            f"data {_short(report.calibration.data_digest)}",
        ),
        (
            "evaluation",
            f"{report.evaluation.source}, {seen} {noun(seen)}, data {_short(report.evaluation.data_digest)}",
        ),
        ("versions", ", ".join(f"{name} {version}" for name, version in sorted(report.versions.items()))),
        ("created", report.created),
    )
    return Table(("item", "value"), rows)


def _short(digest: str) -> str:
    return digest[:12]


# A comparison as tables of plain text.


DIGEST_LENGTH, SHOWN_DIGEST = 64, 12
MOST_LAYERS = 20  # layers that a table shows at most; --json has all of them


def change_table(comparison: ReportChanges) -> Table:
    """Each metric: both values, how much worse it became, the interval, and the result in words."""
    rows = []
    for metric in comparison.metrics:
        before, after = (
            "" if value is None else format_value(value, metric.unit)
            for value in (metric.before, metric.after)
        )
        worse = "" if metric.worse_by is None else format_drop(metric.worse_by, metric.unit)
        interval = format_interval(metric.interval, metric.unit)
        rows.append((metric.name, before, after, worse, interval, _result(metric)))
    return Table(("metric", "before", "after", "worse by", INTERVAL, "result"), tuple(rows))


def size_line(comparison: ReportChanges) -> str:
    """Return how the quantized file's size changed, in words."""
    before, after = comparison.bytes_before, comparison.bytes_after
    if before == after:
        return f"size: {format_bytes(after)}, unchanged"
    change = f"{100 * (after / before - 1):+.2f} %"
    return f"size: {format_bytes(before)} before, {format_bytes(after)} after ({change})"


def difference_table(comparison: ReportChanges) -> Table:
    """Return what else differs; digests are cut to their first characters."""
    rows = ((found.what, _cut(found.before), _cut(found.after)) for found in comparison.changes)
    return Table(("what", "before", "after"), tuple(rows))


def moved_table(comparison: ReportChanges) -> Table:
    """Layers that moved between integer and float, or stay float for another reason."""
    rows = tuple((found.what, found.before, found.after) for found in comparison.layers)
    return Table(("layer", "before", "after"), rows)


def latency_line(comparison: ReportChanges) -> str:
    """Return how the latency relative to the float model changed; empty if neither report measured it."""
    before, after = (
        "not measured" if ratio is None else f"{ratio:.2f} times float"
        for ratio in (comparison.latency_before, comparison.latency_after)
    )
    return "" if before == after == "not measured" else f"latency: {before} before, {after} after"


def worse_table(comparison: ReportChanges) -> Table:
    """Layers that lost most of their SQNR, at most twenty of them."""
    rows = tuple(
        (
            loss.name,
            loss.op,
            format_value(loss.before, "decibel"),
            format_value(loss.after, "decibel"),
            format_drop(loss.worse_by, "decibel"),
        )
        for loss in (comparison.worse_layers or ())[:MOST_LAYERS]
    )
    return Table(("layer that got worse", "op", "before", "after", "worse by"), rows)


def worse_line(comparison: ReportChanges) -> str:
    """Return how many layers got worse, or why that is not known."""
    found = comparison.worse_layers
    if found is None:
        return "layers: not compared; run `ptq analyze` for both runs to see which layers got worse"
    more = f", {len(found) - MOST_LAYERS} of them not shown" if len(found) > MOST_LAYERS else ""
    return f"layers whose output lost more than {WORSE_BY_DB:g} dB: {len(found)}{more}"


def _result(metric: MetricChange) -> str:
    """Whether the metric got better or worse, and whether the change is within its interval."""
    worse = metric.worse_by
    if worse is None:
        return "new" if metric.before is None else "gone"
    if abs(worse) <= TOLERANCE or metric.before == metric.after:
        return "same"
    interval = metric.interval
    is_noise = interval is not None and interval.low <= 0 <= interval.high
    return ("worse" if worse > 0 else "better") + (", within noise" if is_noise else "")


def _cut(text: str) -> str:
    is_digest = len(text) == DIGEST_LENGTH and not set(text) - set("0123456789abcdef")
    return text[:SHOWN_DIGEST] if is_digest else text


# Several quantized models of one float model, side by side.


def several_tables(reports: Sequence[Report]) -> tuple[Table, ...]:
    """Return tables with one column per report: metrics with their drops, then comparisons and sizes."""
    names = tuple(report.model.quantized_model.name for report in reports)
    labels = metric_labels(reports[0])
    metrics = list(zip(*(report.metrics for report in reports), strict=True))
    with_pytorch = any(found[0].pytorch_value is not None for found in metrics)
    label_rows = tuple(
        row for found in metrics for row in _label_rows(found, labels, with_pytorch=with_pytorch)
    )
    pair_rows = tuple(
        (labels[found[0].name], *(format_value(metric.quantized_value, metric.unit) for metric in found))
        for found in metrics
        if found[0].float_value is None
    )
    sizes = tuple(format_bytes(report.model.quantized_model.bytes) for report in reports)
    return (
        Table(("metric", *(["PyTorch"] if with_pytorch else []), "float", *names), label_rows),
        Table(("against float", *names), (*pair_rows, ("size", *sizes))),
    )


def _label_rows(
    found: Sequence[Measurement], labels: Mapping[str, str], *, with_pytorch: bool
) -> Iterator[Row]:
    first = found[0]
    if first.float_value is None:
        return
    references = (first.pytorch_value, first.float_value) if with_pytorch else (first.float_value,)
    before = ("" if value is None else format_value(value, first.unit) for value in references)
    values = (format_value(metric.quantized_value, metric.unit) for metric in found)
    yield (labels[first.name], *before, *values)
    drops = (format_drop(metric.drop, metric.unit) if metric.drop is not None else "" for metric in found)
    yield ("  drop", *("" for _ in references), *drops)
