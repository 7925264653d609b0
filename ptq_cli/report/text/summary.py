"""A report, its streams, a tuning and an analysis as tables of texts for terminal, Markdown and page."""

import math
from collections.abc import Sequence
from typing import cast

from ptq_cli.core.words import format_bytes
from ptq_cli.evaluation.document.analysis_document import Analysis
from ptq_cli.evaluation.document.ladder import LADDER_INTERRUPTED, BudgetCheck, Ladder, LadderStep
from ptq_cli.evaluation.document.measurement import Unit
from ptq_cli.evaluation.document.report_document import Report
from ptq_cli.report.text.numbers import (
    INTERVAL,
    Row,
    Table,
    format_decibels,
    format_drop,
    format_interval,
    format_value,
    share_of_float,
)

_MOST_CLASSES = 20  # classes that a table shows at most; report.json has all of them


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
    """Label of each metric in tables: with its output, if there are several that were judged.

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
    """Each metric for both models, with the drop and its interval."""
    rows, labels = [], metric_labels(report)
    for metric in (item for item in report.metrics if item.drop is not None):
        texts = (format_value(value, metric.unit) for value in (metric.float_value, metric.quantized_value))
        interval = format_interval(metric.drop_interval, metric.unit)
        rows.append((labels[metric.name], *texts, format_drop(metric.drop, metric.unit), interval))
    return Table(("metric", "float", "quantized", "drop", INTERVAL), tuple(rows))


def no_interval_lines(report: Report) -> list[str]:
    """A line for each metric whose drop has no interval, with the reason."""
    return [
        f"note: the drop of {metric.name} has no interval: {metric.no_interval}"
        for metric in report.metrics
        if metric.no_interval
    ]


def class_table(report: Report) -> Table:
    """Classes of a metric that has them, the largest drop first, at most twenty."""
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
        for found in sorted(classes, key=lambda found: -found.drop)[:_MOST_CLASSES]
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
    """Number of layers on integers, and of those that stay float."""
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
    """Versions, settings, data and hashes, to make the report again."""
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


def share_table(analysis: Analysis) -> Table:
    """Output with the weights, the activations, or both quantized."""
    shares = analysis.shares
    metric = analysis.metric if shares.both.metric is not None else None
    found = {
        "weights only": shares.weights,
        "activations only": shares.activations,
        "weights and activations": shares.both,
    }
    rows = []
    for name, item in found.items():
        if item is not None:
            values = [] if metric is None else [_metric_text(item.metric, cast(Unit, metric.unit))]
            rows.append((name, format_decibels(item.sqnr_db), *values))
    return Table(("quantized", "SQNR", *([] if metric is None else [metric.name])), tuple(rows))


def _metric_text(value: float | None, unit: Unit) -> str:
    return "NaN" if value is None or math.isnan(value) else format_value(value, unit)


def several_tables(reports: Sequence[Report]) -> tuple[Table, ...]:
    """Tables with one column per report: metrics with their drops, then comparisons and sizes."""
    names = tuple(report.model.quantized_model.name for report in reports)
    labels = metric_labels(reports[0])
    metrics = list(zip(*(report.metrics for report in reports), strict=True))
    label_rows: list[Row] = []
    for found in metrics:
        first = found[0]
        if first.float_value is not None:
            values = (first.float_value, *(metric.quantized_value for metric in found))
            label_rows.append((labels[first.name], *(format_value(value, first.unit) for value in values)))
            drops = (format_drop(metric.drop, metric.unit) for metric in found)
            label_rows.append(("  drop", "", *drops))
    pair_rows = tuple(
        (labels[found[0].name], *(format_value(metric.quantized_value, metric.unit) for metric in found))
        for found in metrics
        if found[0].float_value is None
    )
    sizes = tuple(format_bytes(report.model.quantized_model.bytes) for report in reports)
    return (
        Table(("metric", "float", *names), tuple(label_rows)),
        Table(("against float", *names), (*pair_rows, ("size", *sizes))),
    )


SHOWN_TOKENS = 16  # tokens shown of a continuation without a tokenizer


def stream_table(report: Report) -> Table:
    """Metrics on both kinds of states, and in the first and the last tenth of the steps."""
    header = ("over the steps", "own", "float's", "begin", "end", "loss", INTERVAL)
    if report.stream is None:
        return Table(header, ())
    own, forced = ({item.name: item for item in found} for found in (report.metrics, report.stream.forced))
    labels, rows = metric_labels(report), []
    for item in report.stream.drifts:
        values = [format_value(found[item.metric].quantized_value, item.unit) for found in (own, forced)]
        write = format_value if own[item.metric].float_value is None else format_drop
        tenths = [write(value, item.unit) for value in (item.first, item.last)]
        loss, interval = format_drop(item.loss, item.unit), format_interval(item.interval, item.unit)
        rows.append((labels[item.metric], *values, *tenths, loss, interval))
    return Table(header, tuple(rows))


def stream_lines(report: Report) -> list[str]:
    """A line about the recordings, and the step at which a model on its own states is worst."""
    found = report.stream
    if found is None or not found.curve:
        return []
    name = found.drifts[0].metric if found.drifts else ""
    values = {item.step: item.free.get(name) for item in found.curve}
    worst = values[found.worst_step]
    at = f", {format_value(worst, 'decibel')}" if worst is not None and name == "sqnr_db" else ""
    recordings = f"{found.recordings:,} recording{'' if found.recordings == 1 else 's'}"
    return [
        f"{recordings} of up to {found.longest:,} steps: on its own states, on the float model's, and on its "
        "own in the first and the last tenth",
        f"worst at step {found.worst_step}{at}",
    ]


def generation_lines(report: Report) -> list[str]:
    """A line about how far prompts are continued alike, and the first continuations that differ.

    Example:
        >>> from types import SimpleNamespace
        >>> from ptq_cli.evaluation.document.measurement import Example, Generation
        >>> one = Example(prompt="a.npz[0]", of_float=(7, 1), quantized=(7, 2))
        >>> found = Generation(
        ...     prompts=4,
        ...     tokens=2,
        ...     unchanged=3,
        ...     median_equal=2.0,
        ...     first_differences=(1, None, None, None),
        ...     examples=(one,),
        ... )
        >>> for line in generation_lines(SimpleNamespace(generation=found)):
        ...     print(line)
        4 prompts continued by 2 tokens: 3 alike, the first 2 tokens equal in the median
        a.npz[0]: float 7 1 | quantized 7 2
    """
    found = report.generation
    if found is None:
        return []
    prompts = f"{found.prompts:,} prompt{'' if found.prompts == 1 else 's'}"
    tokens = f"{found.tokens:,} token{'' if found.tokens == 1 else 's'}"
    lines = [
        f"{prompts} continued by {tokens}: {found.unchanged:,} alike, the first {found.median_equal:g} "
        "tokens equal in the median"
    ]
    for item in found.examples if found.unchanged < found.prompts else ():
        one, other = (
            f"{text!r}" if text is not None else " ".join(map(str, tokens[:SHOWN_TOKENS]))
            for text, tokens in ((item.float_text, item.of_float), (item.quantized_text, item.quantized))
        )
        lines.append(f"{item.prompt}: float {one} | quantized {other}")
    return lines


def ladder_table(ladder: Ladder) -> Table:
    """Each candidate: its SQNR, each budget's metric, and what the held-out samples have shown."""
    names = [check.metric for check in ladder.best.checks]
    header = ["rung", "SQNR"]
    for check in ladder.best.checks:
        header += [budgeted(check)]
        header += ["at most" if check.kind == "max_drop" else "at least"]
    rows = [_row(step, names, chosen=index == ladder.chosen) for index, step in enumerate(ladder.steps)]
    return Table((*header, "result"), tuple(rows))


def _row(step: LadderStep, names: list[str], *, chosen: bool) -> Row:
    cells = [step.name, format_decibels(step.sqnr_db)]
    checks, proof = ({check.metric: check for check in found} for found in (step.checks, step.proof))
    for name in names:
        check = proof.get(name, checks[name])
        cells += [written(check, check.value), written(check, check.bound) if name in proof else ""]
    return (*cells, result_of(step, chosen=chosen))


def budgeted(check: BudgetCheck) -> str:
    """Quantity that a budget limits, in words: a drop, or a value."""
    return f"drop of {check.metric}" if check.kind == "max_drop" else check.metric


def written(check: BudgetCheck, value: float) -> str:
    """Write a value of a budget's metric."""
    return format_drop(value, check.unit) if check.kind == "max_drop" else format_value(value, check.unit)


def result_of(step: LadderStep, *, chosen: bool) -> str:
    """Say what became of a candidate."""
    if step.met:
        return "budget kept"
    if not step.kept:
        return "no better"
    proven = "not proven" if step.proof else "better"
    return f"{proven}, chosen" if chosen else proven


def verdict_of(ladder: Ladder) -> str:
    """Say whether the budget is kept, and how sure that is."""
    if ladder.met:
        return (
            f"budget kept by {ladder.best.name}: shown with 95 % confidence on {ladder.set_aside:,} held-out "
            "samples"
        )
    count = len(ladder.steps)
    best = f"{ladder.best.name} is the best of {count} candidate{'' if count == 1 else 's'}"
    if ladder.stopped == LADDER_INTERRUPTED:
        return f"the budget is not kept yet: {best} so far"
    return f"BUDGET MISSED: {best}; {ladder.stopped}"
