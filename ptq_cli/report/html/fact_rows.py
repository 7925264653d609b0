"""The large figures at the top of the page, and its rows of plain facts: times and origin."""

from collections.abc import Iterator

from ptq_cli.core.words import format_bytes
from ptq_cli.evaluation.document.analysis_document import Analysis
from ptq_cli.evaluation.document.gate_result import SWITCHED_OFF, Times
from ptq_cli.evaluation.document.report_document import Report
from ptq_cli.report.html.evidence import Evidence
from ptq_cli.report.text.numbers import (
    Row,
    format_drop,
    format_latency,
    format_share,
    format_value,
    share_of_float,
)
from ptq_cli.report.text.speed import served_as, speed_lines


def headline(report: Report, evidence: Evidence) -> Iterator[Row]:
    """Label, value and line below of the figures at the top: a drop, a comparison, size, and work."""
    paired = next((metric for metric in report.metrics if metric.drop is not None), None)
    if paired is not None and paired.drop is not None and paired.float_value is not None:
        before, drop = format_value(paired.float_value, paired.unit), format_drop(paired.drop, paired.unit)
        value = format_value(paired.quantized_value, paired.unit)
        yield paired.name, value, f"float {before}, drop {drop}"
    compared = next((metric for metric in report.metrics if metric.drop is None), None)
    if compared is not None:
        value = format_value(compared.quantized_value, compared.unit)
        worst = next((metric for metric in report.metrics if metric.channel is not None), None)
        detail = f", worst channel {format_value(worst.quantized_value, worst.unit)}" if worst else ""
        yield compared.name, value, f"quantized against float{detail}"
    sizes = report.model.float_bytes, report.model.quantized_model.bytes
    share = share_of_float(sizes[1], sizes[0])
    yield "file size", share, " → ".join(format_bytes(size) for size in sizes)
    layers = f"{report.quantized_layers:,} of {len(report.layers):,}"
    work = {layer.name: layer.multiply_accumulates or 0 for layer in evidence.layers}
    total = sum(work.get(layer.name, 0) for layer in report.layers)
    if not total:
        stay = f"{report.float_layers} stay{'s' if report.float_layers == 1 else ''} float"
        yield "layers on integers", layers, stay
        return
    integer = sum(work.get(layer.name, 0) for layer in report.layers if layer.integer)
    yield "work on integers", format_share(integer, total), f"multiply-accumulates; {layers} layers"


def time_rows(report: Report, analysis: Analysis | None) -> tuple[Row, ...]:
    """Dates and measured times, which differ between two runs on the same input."""
    rows = [("report made", report.times.created)]
    if analysis is not None:
        rows.append(("analysis made", analysis.created))
    return (*rows, *_latency_rows(report.times))


def _latency_rows(times: Times) -> Iterator[Row]:
    latency = times.latency
    if latency is None:
        why = f": {times.not_measured}" if times.not_measured else ""
        how = (
            "; ptq evaluate --set evaluation.latency=true measures it"
            if times.not_measured in ("", SWITCHED_OFF)
            else ""
        )
        yield "latency", f"not measured{why}{how}"
        return
    yield "latency", "; ".join(speed_lines(times))
    turns = f"{served_as(latency)}, median of {latency.rounds} turns"
    yield "float", f"{format_latency(latency.float_ms / 1000)} {turns}"
    yield "quantized", format_latency(latency.quantized_ms / 1000)
    if latency.own is not None:
        yield latency.own.name, format_latency(latency.own.own_ms / 1000)
    for warning in times.warnings:
        yield "warning", warning.message
        yield from (("next", hint) for hint in warning.hints)


def origin_rows(report: Report) -> tuple[Row, ...]:
    """Models, settings, data and versions, with full hashes."""
    model, calibration, evaluation = report.model, report.calibration, report.evaluation
    rows = [
        ("model", model.source),
        ("float model", f"{model.float_model.name}, SHA-256 {model.float_model.sha256}"),
        ("quantized model", f"{model.quantized_model.name}, SHA-256 {model.quantized_model.sha256}"),
        ("target", report.target),
        ("amax", report.amax.text),
        (
            "calibration",
            f"{calibration.method}, {calibration.samples:,} {evaluation.noun(calibration.samples)}, "
            f"data {calibration.data_digest}",
        ),
        (
            "evaluation",
            f"{evaluation.source}, {evaluation.samples:,} {evaluation.noun(evaluation.samples)}, "
            f"data {evaluation.data_digest}",
        ),
    ]
    if report.baseline is not None:
        rows.append(
            ("baseline", f"made {report.baseline.created}, SHA-256 {report.baseline.quantized_sha256}")
        )
    rows += [(f"{name} version", version) for name, version in sorted(report.versions.items())]
    return tuple(rows)
