"""What calibration, export, quantization, recovery and preparation made of a model, in lines."""

import math
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from ptq_cli.core.words import few, format_bytes
from ptq_cli.latency.bench_tables import latency_line
from ptq_cli.models.preparing.prepare_graph import PASSES
from ptq_cli.plan.target.rules import QNN, RUNTIME_TITLES
from ptq_cli.recipe.declaration import BITS
from ptq_cli.report.text.numbers import Table, share_of_float
from ptq_cli.shown.report_lines import add_report_to_step_summary, exit_status, print_evaluation
from ptq_cli.shown.verdict import verdict_lines
from ptq_cli.terminal.output import detail, print_json, print_table, say, tell, warn_of_result
from ptq_cli.terminal.phrases import as_typed, closeness, counted, next_step, shown_path

if TYPE_CHECKING:
    from ptq_cli.collectors.tensor_statistics import NonFinite
    from ptq_cli.evaluation.document.gate_result import Times
    from ptq_cli.pipeline.run_calibrate import CalibrationResult
    from ptq_cli.pipeline.run_export import ExportResult
    from ptq_cli.pipeline.run_merge import MergeResult
    from ptq_cli.pipeline.run_prepare import PrepareResult
    from ptq_cli.pipeline.run_quantize import QuantizationResult
    from ptq_cli.placement.fastest_placement import LatencyPreference
    from ptq_cli.plan.sites import Plan
    from ptq_cli.recover.recovery_effects import FloatLayers, RangesByEffect, Recovery, RungEffect
    from ptq_cli.runtime.engine import KernelCounts


_MOST_NAMES = 3


def export_recovery_lines(result: "ExportResult") -> Iterator[str]:
    """Yield what the rungs of an export did."""
    if result.ranges is not None:
        yield ranges_line(result.ranges)
    if result.float_layers is not None:
        yield from float_lines(result.float_layers)
    if result.recovery is not None:
        yield from recovery_lines(result.recovery)


def recovery_lines(recovery: "Recovery") -> Iterator[str]:
    """Yield what each rung recovered, and what it did not."""
    told: set[str] = set()
    for effect in recovery.effects:
        for line in _effect_lines(effect):
            if line not in told:  # Two rungs may refuse the same layers for the same reason.
                yield line
            told.add(line)


def _effect_lines(effect: "RungEffect") -> Iterator[str]:
    yield _bits_line(effect) if effect.rung == BITS else _summary(effect)
    if effect.damped and effect.kept:
        yield (
            f"note: {counted(len(effect.damped), 'layer')} ({_names(effect.damped)}) had fewer rows of "
            "data than inputs: more samples may help"
        )
    yield from refused_lines(effect.refused, "was not recovered", "were not recovered")


def refused_lines(refused: Mapping[str, str], one: str, several: str) -> Iterator[str]:
    """Yield a note for each reason why layers were left out."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for name, reason in refused.items():
        reasons[reason].append(name)
    for reason, names in reasons.items():
        said = one if len(names) == 1 else several
        yield f"note: {counted(len(names), 'layer')} {said} ({_names(names)}): {reason}"


def ranges_line(ranges: "RangesByEffect") -> str:
    """Say what was chosen by its effect.

    Example:
        >>> from ptq_cli.recover.recovery_effects import RangesByEffect
        >>> found = RangesByEffect(
        ...     kept=True, before=12.0, after=18.51, samples=16,
        ...     decided_by=8, tensors=40, methods={"x": "max"},
        ... )
        >>> print(ranges_line(found))
        chose the ranges of 1 of 40 tensors (ranges): output SQNR from 12.0 to 18.5 dB on 8 samples
    """
    if not ranges.tensors:
        return "note: no range was changed (ranges): each tensor has only one way to choose it"
    by = f"on {counted(ranges.decided_by, 'sample')}"
    if not ranges.changed:
        tried = f"of {counted(ranges.tensors, 'tensor')} was changed (ranges): none is better"
        return f"note: no range {tried} (output SQNR {_decibels(ranges.before)} dB {by})"
    change = f"output SQNR from {_decibels(ranges.before)} to {_decibels(ranges.after)} dB {by}"
    if ranges.kept:
        told = f", {len(ranges.within)} by what their readers tell apart" if ranges.within else ""
        return f"chose the ranges of {ranges.changed} of {ranges.tensors} tensors{told} (ranges): {change}"
    return f"note: no range was changed (ranges): it gained less than 0.1 dB, so it was not kept ({change})"


def float_lines(found: "FloatLayers") -> Iterator[str]:
    """Say which layers find ranges at each run for accuracy, or were left in float, and what that costs.

    Example:
        >>> from ptq_cli.recover.recovery_effects import FloatLayers
        >>> found = FloatLayers(layers=("stem",), before=12.0, after=18.5, decided_by=3, slower=0.07)
        >>> print(next(float_lines(found)))
        left 1 layer in float (stem), for about 7 % more time than integers take: SQNR of the worst output, \
but for what weights lose, from 12.0 to 18.5 dB on 3 samples
    """
    done = []
    if found.dynamic:
        done.append(
            f"set ranges at each run for {counted(len(found.dynamic), 'layer')} ({_names(found.dynamic)})"
        )
    if found.wide:
        done.append(f"gave 16 bits to {counted(len(found.wide), 'activation')} ({_names(found.wide)})")
    if found.more_bits:
        weights = counted(len(found.more_bits), "weight")
        done.append(f"gave 8 bits to {weights} ({_names(found.more_bits)})")
    if found.layers:
        done.append(f"left {counted(len(found.layers), 'layer')} in float ({_names(found.layers)})")
    if done:
        time = ", for no more time"
        if found.slower is None:
            time = ""
        elif found.slower > 0.0:
            time = f", for about {100 * found.slower:.0f} % more time than integers take"
        but = "" if found.with_weights else ", but for what weights lose,"
        change = f"from {_decibels(found.before)} to {_decibels(found.after)} dB"
        samples = counted(found.decided_by, "sample")
        yield f"{' and '.join(done)}{time}: SQNR of the worst output{but} {change} on {samples}"


def _summary(effect: "RungEffect") -> str:
    nothing = f"note: nothing was recovered ({effect.rung}):"
    if not effect.layers:
        return f"{nothing} no layer could be"
    if not effect.changed:
        return f"{nothing} no better integers, scales or biases were found"
    recovered = f"recovered {counted(len(effect.layers), 'layer')} ({effect.rung}):"
    if not effect.decided_by:
        measured = [item for item in effect.layers.values() if item.before > 0.0 and item.after > 0.0]
        typical = median(10.0 * math.log10(item.before / item.after) for item in measured)
        return f"{recovered} the error of a layer fell by {typical:.1f} dB (median); no samples were held out"
    by = f"on {counted(effect.decided_by, 'sample')}"
    change = f"output SQNR from {_decibels(effect.before)} to {_decibels(effect.after)} dB {by}"
    if effect.kept:
        return f"{recovered} {change}"
    return f"{nothing} it did not help, so it was not kept ({change})"


def _bits_line(effect: "RungEffect") -> str:
    done = ["zero points for blocks"] if effect.zero_points else []
    if effect.more_bits:
        bits = " or ".join(map(str, sorted(set(effect.more_bits.values()))))
        names = _names([*effect.more_bits])
        done.append(f"{bits} bits for {counted(len(effect.more_bits), 'layer')} ({names})")
    change = f"from {_decibels(effect.before)} to {_decibels(effect.after)} dB"
    by = f"on {counted(effect.decided_by, 'sample')}"
    return f"chose {' and '.join(done)} ({effect.rung}): worst output {change} {by}, with weights to nearest"


def _decibels(value: float) -> str:
    return f"{value:.1f}" if math.isfinite(value) else "infinitely many" if value > 0 else "no"


def _names(names: Sequence[str]) -> str:
    return few(names, _MOST_NAMES)


def print_prepared(result: "PrepareResult") -> None:
    """Print what the passes did to a model, and how the result compares with it."""
    effects = {item.name: item.effect for item in PASSES}
    rows = [(name, f"{times:,}", effects[name]) for name, times in result.applied.items() if times]
    if result.simplified:
        rows.insert(
            0,
            ("simplify", f"{result.simplified:,}", "folded constants and removed nodes that compute nothing"),
        )
    say(f"{result.file.path.name}: {result.file.kind.value}")
    print_table(Table(("pass", "times", "what it did"), tuple(rows)), right=(1,), whole=(0, 1))
    say(f"nodes: {result.nodes_before:,} before, {result.nodes:,} after; opset {result.opset}")
    for note in result.notes:
        say(f"note: {note}")
    inputs = as_typed(result.compared_on, Path.cwd())
    if result.difference is None:
        say(f"not compared: {result.file.path.name} does not run on {inputs}; pass data with --data")
    else:
        say(f"the ONNX model equals {result.compared_with} {closeness(result.difference)}, on {inputs}")
    say(f"wrote {shown_path(result.output)}")


def print_export(result: "ExportResult") -> None:
    """Print what was exported, and where it is."""
    print_quantized(result)
    _print_written(result)
    if result.accuracy is not None:
        _print_verdict(result)


def _print_written(result: "ExportResult") -> None:
    share = share_of_float(result.bytes, result.float_bytes)
    say(f"wrote {shown_path(result.output)} ({format_bytes(result.bytes)}, {share})")
    if result.context is not None:
        say(f"wrote {shown_path(result.context)}, compiled for the HTP alone")


_NAMED = 3  # tensors of a note; --json has all


def print_quantized(result: "ExportResult") -> None:
    """Print what was quantized and how."""
    from ptq_cli.pipeline.exported_file import quantizer_line

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
    if result.widened:
        channels = counted(sum(result.widened.values()), "channel")
        names = few([f"'{name}'" for name in result.widened], _NAMED)
        detail(f"note: {channels} of {names} got a wider scale, so that the bias fits")
    for method in dict.fromkeys(result.one_candidate.values()):
        tensors = few([f"'{name}'" for name, own in result.one_candidate.items() if own == method], _NAMED)
        detail(f"note: {method} had only one candidate for {tensors}: the whole range")
    for line in export_recovery_lines(result):
        detail(line)


def _print_preference(latency: "LatencyPreference", plan: "Plan") -> None:
    measured = f"by '{shown_path(Path(latency.source))}'" if latency.source else "measured here"
    times = latency_line(latency.floating, latency.integer, latency.expected, latency.batch, latency.threads)
    detail(f"{times}, {measured}")
    if not any(layer.quantized for layer in plan.layers):
        from ptq_cli.runtime.products import is_signed_exact

        own = "vnni" if is_signed_exact() else "avx2"
        others = [
            f"on one with {name.upper()} about {speed:.2f} times the speed of float"
            for name, speed in latency.elsewhere.items()
            if speed > 1.0 and name != own
        ]
        why = "; ".join(["int8 gains nothing on this processor", *others])
        say(f"warning: {why}; all layers stay in float")
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


def print_calibration(result: "CalibrationResult") -> None:
    """Print what was calibrated."""
    tensors, samples = counted(result.tensors, "tensor"), counted(result.samples, result.unit)
    part = f" of {result.shards}" if result.shards else ""
    if result.tensors:
        detail(f"calibrated {tensors} on {samples}{part}, statistics: {result.method}")
    else:
        given = "" if result.samples or result.shards else ", and no data were given"
        detail(f"measured no activations: none needs a range{given}")
    if result.parity is not None:
        detail(f"the ONNX model equals {result.compared_with} {closeness(result.parity)}")
    for note in result.notes:
        detail(f"note: {note}")
    for item in result.rescaled:
        detail(item.describe())
    for name in result.dead:
        detail(f"note: '{name}' was 0 in every sample")
    for name, nonfinite in result.nonfinite.items():
        say(f"warning: '{name}' contained {nonfinite_counts(nonfinite)}; its range leaves them out")
    for name in result.faint:
        detail(f"note: '{name}' was at most 2^-110 in magnitude, so all of it quantizes to 0")
    say(f"wrote {shown_path(result.run.calibration)}")


def nonfinite_counts(nonfinite: "NonFinite") -> str:
    """Write how many values were not finite.

    Example:
        >>> from ptq_cli.collectors.tensor_statistics import NonFinite
        >>> nonfinite_counts(NonFinite(nan=1200, negative=1))
        '1,200 NaN and 1 -Inf'
    """
    counts = ((nonfinite.nan, "NaN"), (nonfinite.positive, "+Inf"), (nonfinite.negative, "-Inf"))
    parts = [f"{count:,} {name}" for count, name in counts if count]
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def next_line(result: "CalibrationResult", command: str) -> str:
    """Return the next command after a calibration, or after a shard of one."""
    if result.shards:
        return f"next, with the other shards: ptq merge {shlex.quote(str(result.run.path))} … --run all"
    return next_step(command, result.run)


def print_merge(result: "MergeResult") -> None:
    """Print what was merged."""
    runs, samples = counted(result.runs, "run"), counted(result.samples, "sample")
    tensors = counted(result.tensors, "tensor")
    detail(f"merged {runs}: {tensors} on {samples}, statistics: {result.method}")
    if result.shards:
        detail(f"note: merged {result.shards}; missing: {result.missing}")
    say(f"wrote {shown_path(result.merged)}")


def show_quantization(result: "QuantizationResult", *, as_json: bool) -> int:
    """Print what was quantized, and return the status to exit with."""
    add_report_to_step_summary(result.evaluation)
    if as_json:
        print_json(result)
    else:
        print_calibration(result.calibration)
        print_quantized(result.export)
        _print_written(result.export)
        print_judgement(result)
        if result.evaluation is None:
            command = "ptq evaluate" if result.has_evaluation_data else "ptq evaluate --eval-data PATH"
            tell(next_step(command, result.calibration.run, result.export.output))
    return exit_status(result.evaluation)


def print_judgement(result: "QuantizationResult") -> None:
    """Print the report, or how fast the model is if it was not evaluated, and the warnings."""
    if result.evaluation is not None:
        print_evaluation(result.evaluation)
        return
    _print_verdict(result.export, result.times)
    warn_of_result((*result.export.warnings, *result.times.warnings))


def _print_verdict(result: "ExportResult", times: "Times | None" = None) -> None:
    """Print accuracy, speed and size, and whether all three are had; quietly the last line alone."""
    sizes = (result.float_bytes, result.bytes)
    lines = [*verdict_lines(result.accuracy, sizes, times, result.expected)]
    for line in lines[:-1]:
        detail(line)
    (say if result.accuracy is not None else detail)(lines[-1])
