"""How an analysis is shown on the terminal: ranked layers or tensors, and below them what to try."""

import math
import shlex
from collections.abc import Sequence
from pathlib import Path

from ptq_cli.analysis.causes import percent
from ptq_cli.evaluation.document.analysis_document import (
    Analysis,
    Cause,
    LayerAnalysis,
    MetricSummary,
    TensorAnalysis,
)
from ptq_cli.evaluation.metrics.metric_registry import SQNR
from ptq_cli.report.text.numbers import Table
from ptq_cli.report.text.result_warnings import SATURATING
from ptq_cli.report.text.summary import share_table
from ptq_cli.setup.run_directory import DEFAULT_RUN
from ptq_cli.terminal.output import UNKNOWN, print_table, say
from ptq_cli.terminal.phrases import as_typed, counted

# Short names of causes that are too long for a table on a terminal with 80 columns.
SHORT: dict[Cause, str] = {"channel imbalance": "imbalance", "bias overflow": "bias"}

_EXCLUDE = "--exclude"
SATURATION: Cause = "saturation"
MOST_EXCLUDED = 3  # Most layers, starting with the costliest, that one command proposes to leave in float


def print_analysis(
    analysis: Analysis, run: Path, top: int, *, tensors: bool, is_last: bool = False, unit: str = "sample"
) -> None:
    """Print an analysis."""
    _print_summary(analysis, is_last=is_last, unit=unit)
    if tensors or analysis.metric is None:
        # Those whose own quantization costs most come first.
        worst = sorted(analysis.tensors, key=lambda item: (item.cause != "not finite", item.sqnr_isolated_db))
        rows = worst[:top]
        _print_tensors(rows, len(analysis.tensors))
        findings = [(item.remedy, item.cause, item.name, item.finding) for item in rows]
    else:
        ranked = analysis.ranked()
        _print_layers(ranked[:top], len(ranked), analysis.metric)
        findings = [(layer.remedy, layer.cause, layer.name, layer.finding) for layer in ranked[:top]]
    most = min(MOST_EXCLUDED, max(1, len(analysis.ranked()) - 1))
    _print_remedies(findings, run, most)


def _print_summary(analysis: Analysis, *, is_last: bool, unit: str) -> None:
    kinds = [item.kind for item in analysis.tensors]
    activations = counted(kinds.count("activation"), "activation")
    constants = counted(len(kinds) - kinds.count("activation"), "constant")
    layers = counted(sum(layer.sensitivity is not None for layer in analysis.layers), "layer")
    samples = counted(analysis.samples.count, unit)
    say(f"analyzed {activations}, {constants} and {layers} on {samples},")
    say(f"at the cost of {analysis.cost.forward_passes:.1f} forward passes")
    source = as_typed(analysis.samples.source, Path.cwd())
    say(f"data: {source}{', as in the last ptq evaluate' if is_last else ''}")
    if analysis.metric is not None:
        _print_output(analysis.metric)
    _print_shares(analysis)


def _print_output(metric: MetricSummary) -> None:
    if metric.float_value is not None:
        values = [_value(metric, value) for value in (metric.float_value, metric.quantized_value)]
        say(f"{metric.name}: float {values[0]}, quantized {values[1]}")
    elif metric.name != SQNR:
        say(f"{metric.name}: {_value(metric, metric.quantized_value)}")
    if math.isnan(metric.sqnr_db):
        say("SQNR of the output: none, because the quantized model's output holds NaN or Inf")
    else:
        say(f"SQNR of the output: {decibels(metric.sqnr_db)} dB")


def _print_shares(analysis: Analysis) -> None:
    table = share_table(analysis)
    print_table(table, right=tuple(range(1, len(table.header))), whole=tuple(range(len(table.header))))
    for line in analysis.shares.advice:
        say(line)


def _print_layers(layers: Sequence[LayerAnalysis], total: int, metric: MetricSummary) -> None:
    has_drop = metric.name != SQNR
    header = ["#", "layer", "output", "cause", "own/accum.", "as", "op", "left float"]
    if has_drop:
        header.append(f"{metric.name} drop" if metric.float_value is not None else metric.name)
    has_times = any(layer.float_time is not None for layer in layers)
    header += ["time"] if has_times else []
    numbers = tuple(range(2, len(header)))
    hidden = print_table(
        Table(
            tuple(header),
            tuple(_layer_row(layer, metric, has_drop=has_drop, has_times=has_times) for layer in layers),
        ),
        right=(0, 2, 4, 7, 8, 9),
        whole=(0, *numbers),
        optional=numbers[2:],
    )
    if len(layers) < total:
        say(f"{len(layers)} of {total} layers; --top {total} shows all")
    say("output: SQNR in dB of the model's output, only this layer quantized")
    if any(layer.op in CONTAINERS for layer in layers):
        say("If, Loop, Scan: all the layers inside together")
    if "left float" not in hidden:
        say("left float: the same, only this layer left in float")
    if has_times and "time" not in hidden:
        say("time: how much longer the model is expected to take with this layer in float")
    say("own/accum.: SQNR of the layer's output, only it / all layers quantized")


CONTAINERS = ("If", "Loop", "Scan")


def _layer_row(
    layer: LayerAnalysis, metric: MetricSummary, *, has_drop: bool, has_times: bool
) -> tuple[str, ...]:
    found = layer.sensitivity
    if found is None:
        raise ValueError(f"'{layer.name}' has no sensitivity, so it has no rank")
    drop = found.metric_only_quantized if found.drop_only_quantized is None else found.drop_only_quantized
    return (
        str(found.rank),
        layer.name,
        decibels(found.sqnr_only_quantized_db),
        SHORT.get(layer.cause, layer.cause),
        f"{decibels(layer.sqnr_isolated_db)}/{decibels(layer.sqnr_accumulated_db)}",
        "int8" if layer.integer else "float",
        layer.op,
        decibels(found.sqnr_left_float_db),
        *((_value(metric, drop),) if has_drop else ()),
        *((_more(layer.float_time),) if has_times else ()),
    )


def _more(share: float | None) -> str:
    return UNKNOWN if share is None else f"{100 * share:+.1f} %"


def _print_tensors(tensors: Sequence[TensorAnalysis], total: int) -> None:
    header = ("tensor", "own", "cause", "accum.", "kind", "as", "clipped", "used", "range")
    numbers = tuple(range(1, len(header)))
    hidden = print_table(
        Table(header, tuple(map(_tensor_row, tensors))),
        right=(1, 3, 6, 7),
        whole=numbers,
        optional=numbers[2:],
    )
    if len(tensors) < total:
        say(f"{len(tensors)} of {total} tensors; --top {total} shows all")
    say("SQNR in dB. own: only this tensor quantized; accum.: all tensors quantized")
    if "used" not in hidden:
        say("used: share of the range that the middle 99.9 % of the values occupy")


def _tensor_row(tensor: TensorAnalysis) -> tuple[str, ...]:
    ends = (tensor.low, tensor.high)
    return (
        tensor.name,
        decibels(tensor.sqnr_isolated_db),
        SHORT.get(tensor.cause, tensor.cause),
        decibels(tensor.sqnr_accumulated_db),
        tensor.kind,
        tensor.dtype,
        percent(tensor.clipped),
        UNKNOWN if tensor.range_used is None else percent(tensor.range_used),
        UNKNOWN if None in ends else f"{ends[0]:.4g} … {ends[1]:.4g}",
    )


def _print_remedies(findings: Sequence[tuple[str, Cause, str, str]], run: Path, most: int) -> None:
    by_remedy: dict[str, list[tuple[str, str]]] = {}
    for remedy, cause, name, finding in findings:
        if finding:
            kind = SATURATION if cause == SATURATION else _kind(remedy)
            by_remedy.setdefault(kind, []).append((name, finding))
    if not by_remedy:
        say("")
        say("no cause found: each of these is as precise as its integer format allows")
    for kind, found in by_remedy.items():
        # Leaving the few costliest layers in float may help; leaving all of them would quantize nothing.
        if kind == _EXCLUDE:
            remedies = dict.fromkeys(remedy for remedy, *_ in findings if _kind(remedy) == _EXCLUDE)
            flags = " ".join(list(remedies)[:most])
        else:
            flags = kind
        say("")
        if kind == SATURATION:
            say(f"{SATURATING[0]}:")
        else:
            say(f"to try: {remedy_command(flags, run)}" if flags else "no option helps with:")
        for name, finding in found:
            say(f"  {name}: {finding}")


def _kind(remedy: str) -> str:
    return _EXCLUDE if remedy.startswith(_EXCLUDE) else remedy


def remedy_command(remedy: str, run: Path) -> str:
    """Return the command that tries a remedy, as it can be pasted.

    Example:
        >>> remedy_command("--amax mse", Path("ptq-run"))
        'ptq export --amax mse'
        >>> remedy_command("--method histogram --amax mse", Path("my run"))
        "ptq quantize --run 'my run' --method histogram --amax mse"
    """
    verb = "quantize" if "--method" in shlex.split(remedy) else "export"
    where = "" if run == DEFAULT_RUN else f" --run {shlex.quote(str(run))}"
    return f"ptq {verb}{where} {remedy}"


def decibels(value: float | None) -> str:
    """Write decibels without their unit.

    Example:
        >>> decibels(31.517), decibels(math.inf), decibels(None) == UNKNOWN
        ('31.5', 'inf', True)
        >>> decibels(math.nan)
        'NaN'
    """
    if value is None:
        return UNKNOWN
    if math.isnan(value):
        return "NaN"
    return f"{value:.1f}" if math.isfinite(value) else str(value)


def _value(metric: MetricSummary, value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if metric.unit == "share":
        return f"{100 * value:.2f} %"
    return f"{value:.4g}"
