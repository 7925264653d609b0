"""A report as tables of plain text, which the terminal, Markdown and the page share.

Every number becomes text here and nowhere else. Text that comes from the model is passed on unchanged: the
renderer escapes it.
"""

import math
from dataclasses import dataclass

from ptq_cli.core.short_numbers import format_bytes
from ptq_cli.report.document.measurement import Measurement, Unit
from ptq_cli.report.document.report_document import Report
from ptq_cli.report.intervals.interval import CONFIDENCE, Interval

Row = tuple[str, ...]

MAX_DECIMALS = 9
MOST_CLASSES = 20
"""Classes that a table shows at most; report.json has all of them."""
INTERVAL = f"{CONFIDENCE:.0%}".replace("%", " % interval")
"""Header of a column of intervals."""


@dataclass(frozen=True)
class Table:
    """A header, and rows with as many cells as the header."""

    header: Row
    rows: tuple[Row, ...]


def format_value(value: float, unit: Unit, decimals: int | None = None) -> str:
    """Write a metric's value.

    Units:
        a share is written as a percentage, decibels unchanged, a number with four significant digits.

    Args:
        value: the value; inf, -inf and NaN are written as such.
        unit: the metric's unit.
        decimals: digits after the decimal point; None for two, or for four significant digits if the unit
            is ``"number"``.

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

    Edge case:
        Without an interval, or if it is the infinite value alone, an empty text. With unit ``"number"``, as
        many digits as the ends need to differ.

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
    """Write the size of the quantized file as a share of the float file's.

    Example:
        >>> share_of_float(25, 100)
        '25.0 % of float'
    """
    return f"{100 * size / float_size:.1f} % of float"


def verdict_line(report: Report) -> str:
    """Return the verdict, and how many gates failed.

    Example:
        >>> _verdict_text("fail", failed=1, total=2)
        'FAIL: 1 of 2 gates failed'
    """
    failed = sum(not gate.passed for gate in report.gates)
    doubtful = sum(gate.verdict == "undecided" for gate in report.gates)
    return _verdict_text(report.verdict, failed, len(report.gates), doubtful)


def metric_labels(report: Report) -> dict[str, str]:
    """Return how each metric is called in tables: with its output, if there are several that were judged.

    Edge case:
        A name such as ``top1[logits]`` has its output already.
    """
    several = len({metric.output for metric in report.metrics}) > 1
    return {
        metric.name: f"{metric.name} ({metric.output})"
        if several and metric.output is not None and not metric.name.endswith(f"[{metric.output}]")
        else metric.name
        for metric in report.metrics
    }


def label_table(report: Report) -> Table:
    """Return each metric for both models, and for PyTorch if evaluated, with the drop and its interval."""
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
    """Return a line for each metric whose drop has no interval, with the reason."""
    return [
        f"note: the drop of {metric.name} has no interval: {metric.no_interval}"
        for metric in report.metrics
        if metric.no_interval
    ]


def class_table(report: Report, most: int = MOST_CLASSES) -> Table:
    """Return the classes of a metric that has them, the largest drop first, at most ``most`` of them."""
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
    """Return the metrics that compare the two models' outputs, with their intervals."""
    labels = metric_labels(report)
    rows = tuple(
        (
            labels[metric.name],
            _compared_value(metric),
            format_interval(metric.quantized_interval, metric.unit),
        )
        for metric in report.metrics
        if metric.float_value is None
    )
    return Table(("against float", "value", INTERVAL), rows)


def _compared_value(metric: Measurement) -> str:
    value = format_value(metric.quantized_value, metric.unit)
    return value if metric.channel is None else f"{value}, {metric.channel}"


def size_table(report: Report) -> Table:
    """Return both files with their sizes, and the quantized file's size as a share of the float file's.

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
    """Return how many layers run on integers and how many stay float.

    Example:
        >>> _placement_text(1, 3)
        '1 layer runs on integers, 3 stay float'
    """
    return _placement_text(report.quantized_layers, report.float_layers)


def saturation_lines(report: Report) -> list[str]:
    """Return a line about the layers that can saturate on x86 processors without VNNI, if that is known."""
    return [report.saturation.text] if report.saturation is not None and report.saturation.layers else []


def level_lines(report: Report) -> list[str]:
    """Return a line about the accuracy levels that a model with weights in blocks was measured at, if any.

    Example:
        >>> from types import SimpleNamespace
        >>> from ptq_cli.report.document.accuracy_level import AccuracyLevel
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
    """Return every layer with what it runs on and why: float layers first, otherwise in the model's order."""
    layers = sorted(report.layers, key=lambda layer: layer.integer)
    rows = ((layer.name, layer.op, "integer" if layer.integer else "float", layer.reason) for layer in layers)
    return Table(("layer", "op", "runs on", "reason"), tuple(rows))


def origin_table(report: Report) -> Table:
    """Return what is needed to make the report again: versions, settings, data, hashes."""
    settings = "".join(f", {name} = {value!r}" for name, value in sorted(report.amax.settings.items()))
    calibrated, seen, noun = report.calibration.samples, report.evaluation.samples, report.evaluation.noun
    rows = (
        ("model", f"{report.model.source}, float {_short(report.model.float_model.sha256)}"),
        ("quantized", _short(report.model.quantized_model.sha256)),
        ("target", report.target),
        ("amax", f"{report.amax.method}{settings}"),
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


def _verdict_text(verdict: str, failed: int, total: int, doubtful: int = 0) -> str:
    gates = f"gate{'' if total == 1 else 's'}"
    text = {
        "pass": f"PASS: {total} {gates} passed",
        "fail": f"FAIL: {failed} of {total} {gates} failed",
        "no gate": "no gate: no limit was set",
    }[verdict]
    return f"{text}; {doubtful} undecided" if doubtful else text


def _placement_text(integer: int, stay_float: int) -> str:
    runs = "layer runs" if integer == 1 else "layers run"
    return f"{integer} {runs} on integers, {stay_float} stay{'s' if stay_float == 1 else ''} float"
