"""How an exported model is shown."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ptq_cli.core.words import few, format_bytes
from ptq_cli.latency.bench_tables import latency_line
from ptq_cli.plan.target.rules import QNN, RUNTIME_TITLES
from ptq_cli.report.text.numbers import share_of_float
from ptq_cli.shown.recovery_lines import export_recovery_lines
from ptq_cli.terminal.output import detail, say, warn
from ptq_cli.terminal.phrases import counted, shown_path

if TYPE_CHECKING:
    from ptq_cli.pipeline.run_export import ExportResult
    from ptq_cli.placement.fastest_placement import LatencyPreference
    from ptq_cli.plan.sites import Plan
    from ptq_cli.runtime.engine import KernelCounts

NAMED = 2
"""Most further weights that the warning names."""


def print_export(result: "ExportResult") -> None:
    """Print what was exported, and where it is."""
    print_quantized(result)
    share = share_of_float(result.bytes, result.float_bytes)
    say(f"wrote {shown_path(result.output)} ({format_bytes(result.bytes)}, {share})")
    if result.context is not None:
        say(f"wrote {shown_path(result.context)}, compiled for the HTP alone")


def print_quantized(result: "ExportResult") -> None:
    """Print what was quantized and how."""
    from ptq_cli.pipeline.exporting.written_metadata import quantizer_line

    detail(quantized_line(result))
    if result.latency is not None:
        _print_preference(result.latency, result.plan)
    if result.kernels is not None:
        runtime = result.kernels.runtime
        where = f"on the {runtime}" if runtime == RUNTIME_TITLES[QNN] else f"of {runtime} on this CPU"
        detail(f"integer kernels {where}: {kernel_line(result.kernels)}")
    elif result.uncounted:
        detail(f"integer kernels: not counted here, because {result.uncounted}; ptq verify counts them")
    if not result.plain:
        detail(quantizer_line(result.weights, result.activations))
    _print_float_layers(result.plan)
    for reason, count in Counter(result.never_run.values()).items():
        stay = "stays" if count == 1 else "stay"
        say(f"warning: {counted(count, 'layer')} {stay} in float: {reason}")
    for name, channels in result.widened.items():
        some = "1 channel" if channels == 1 else f"{channels:,} channels"
        detail(f"note: {some} of '{name}' got a wider scale, so that the bias fits")
    for name, method in result.one_candidate.items():
        detail(f"note: {method} had only one candidate for '{name}': its whole range")
    for line in export_recovery_lines(result):
        detail(line)


def _print_preference(latency: "LatencyPreference", plan: "Plan") -> None:
    measured = f"by '{shown_path(Path(latency.source))}'" if latency.source else "measured here"
    times = latency_line(latency.floating, latency.integer, latency.expected, latency.batch, latency.threads)
    detail(f"{times}, {measured}")
    if not any(layer.quantized for layer in plan.layers):
        say("warning: every layer stays in float, because the whole model is fastest so on that machine")
    if latency.undecided:
        say(f"warning: layers were not placed by latency: {latency.undecided}")


def _print_float_layers(plan: "Plan") -> None:
    """Print how many layers with weights run in float, with weights in float or in integers."""
    floats = [layer for layer in plan.layers if layer.weight and not layer.quantized]
    if floats:
        runs = "runs" if len(floats) == 1 else "run"
        detail(
            f"note: {counted(len(floats), 'layer')} {runs} in float with these weights; ptq inspect says why"
        )
    stored = {site.node for site in plan.weights} - {layer.name for layer in floats}
    stored -= {layer.name for layer in plan.layers if layer.quantized}
    if stored:
        runs = "runs" if len(stored) == 1 else "run"
        what = f"{counted(len(stored), 'layer')} {runs} in float with integer weights"
        detail(f"note: {what}; ptq inspect says why")


def quantized_line(result: "ExportResult") -> str:
    """Return how many layers were quantized, or of how many the weights alone."""
    layers, weights = result.plan.layers, len({site.node for site in result.plan.weights})
    integer = sum(layer.quantized for layer in layers)
    if weights and not integer:
        return f"quantized the weights of {weights} of {len(layers)} layers for {result.target}"
    dynamic = sum(layer.dynamic for layer in layers)
    ranges = f"ranges by {method_line(result)}"
    if dynamic and not result.plan.activations:
        ranges = "ranges of activations found at each run"
    elif dynamic:
        ranges += f", those of {counted(dynamic, 'layer')} found at each run"
    return f"quantized {integer} of {len(layers)} layers for {result.target}, {ranges}"


def method_line(result: "ExportResult") -> str:
    """Return the methods that decided the ranges, in words."""
    parts = [result.amax]
    if result.weight_amax != "max":
        parts.append(f"weights by {result.weight_amax}")
    if result.overridden:
        count = len(result.overridden)
        parts.append(f"{count} {'tensor' if count == 1 else 'tensors'} by overrides")
    return ", ".join(parts)


def kernel_line(kernels: "KernelCounts") -> str:
    """Return how many kernels of each operator are integer, and how many there are if some are float."""
    parts = []
    for name, count in kernels.integer.items():
        floating = kernels.floating.get(name, 0)
        if count or floating:
            parts.append(f"{count} of {count + floating} {name}" if floating else f"{count} {name}")
    return ", ".join(parts) or "nothing"


def warn_of_outliers(outliers: Mapping[str, str], weight_amax: str) -> None:
    """Print on stderr which weights have outliers, if any."""
    if outliers:
        warn(outlier_line(outliers, weight_amax))


def outlier_line(outliers: Mapping[str, str], weight_amax: str = "max") -> str:
    """Return the warning, and what would help that was not asked for already.

    Example:
        >>> outlier_line({"fc.weight": "a value is 99 times the mean of others"})
        "'fc.weight': a value is 99 times the mean of others; pass --set amax.weight_method=mse to clip it"
    """
    (name, what), *rest = outliers.items()
    others = [f"'{other}'" for other, _ in rest]
    also = f"; also in {few(others, NAMED)}" if others else ""
    fix = "" if weight_amax == "mse" else "; pass --set amax.weight_method=mse to clip it"
    if "share a scale" in what:
        fix = "; pass --set weights.granularity=channel to give each its own scale"
    elif "takes one scale" in what or "become 0" in what:
        fix = "; ptq export --exclude LAYER keeps its layer in float"
    return f"'{name}': {what}{also}{fix}"
