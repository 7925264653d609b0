"""How the results of the commands are shown: lines for a person, values for ``--json``."""

import os
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ptq_cli.cli.shown.recovery_lines import (
    export_recovery_lines,
    ranges_values,
    recovery_values,
    refused_lines,
)
from ptq_cli.cli.shown.terminal.output import print_table, say
from ptq_cli.core.short_numbers import format_bytes
from ptq_cli.report.document.report_document import Report
from ptq_cli.report.document.times import Times
from ptq_cli.report.text.gate_summary import doubt_lines, gate_table
from ptq_cli.report.text.numbers import format_latency
from ptq_cli.report.text.several import several_tables
from ptq_cli.report.text.speed_lines import speed_lines
from ptq_cli.report.text.summary import (
    class_table,
    comparison_table,
    label_table,
    level_lines,
    no_interval_lines,
    placement_line,
    share_of_float,
    size_table,
    verdict_line,
)

if TYPE_CHECKING:
    from ptq_cli.cli.shown.documents.calibration_documents import (
        CalibrationDocument,
        MergeDocument,
        MomentsDocument,
        NonFiniteDocument,
        RescalingDocument,
    )
    from ptq_cli.cli.shown.documents.export_documents import ExportedModelDocument, PreferenceDocument
    from ptq_cli.collectors.statistics.tensor_statistics import NonFinite
    from ptq_cli.pipeline.calibration.run_calibrate import CalibrationResult
    from ptq_cli.pipeline.calibration.run_merge import MergeResult
    from ptq_cli.pipeline.exporting.export_result import ExportResult
    from ptq_cli.pipeline.exporting.run_moments import MomentsResult
    from ptq_cli.pipeline.run.run_directory import RunDirectory
    from ptq_cli.runtime.engines.engine import KernelCounts

GATE_MISSED = 3


def print_calibration(result: "CalibrationResult") -> None:
    """Print what was calibrated."""
    tensors, samples = counted(result.tensors, "tensor"), counted(result.samples, result.unit)
    part = f" of {result.shards}" if result.shards else ""
    if result.samples or result.shards:
        say(f"calibrated {tensors} on {samples}{part}, statistics: {result.method}")
    else:
        say("measured no activations: none needs a range, and no data were given")
    if result.parity is not None:
        say(f"the ONNX model equals {result.compared_with} within {result.parity:.1g} of its largest output")
    for note in result.notes:
        say(f"note: {note}")
    for item in result.rescaled:
        say(item.describe())
    if result.channels:
        total = counted(sum(result.channels.values()), "channel")
        say(f"measured {total} of {counted(len(result.channels), 'tensor')}; ptq explain shows them")
    for name in result.dead:
        say(f"note: '{name}' was 0 in every sample")
    for name, nonfinite in result.nonfinite.items():
        say(f"warning: '{name}' contained {nonfinite_counts(nonfinite)}; its range leaves them out")
    for name in result.faint:
        say(f"note: '{name}' was at most 2^-24 in magnitude, so all of it quantizes to 0")
    say(f"wrote {shown_path(result.run.calibration)}")


def nonfinite_counts(nonfinite: "NonFinite") -> str:
    """Write how many values were not finite.

    Example:
        >>> from ptq_cli.collectors.statistics.tensor_statistics import NonFinite
        >>> nonfinite_counts(NonFinite(nan=1200, negative=1))
        '1,200 NaN and 1 -Inf'
    """
    counts = ((nonfinite.nan, "NaN"), (nonfinite.positive, "+Inf"), (nonfinite.negative, "-Inf"))
    parts = [f"{count:,} {name}" for count, name in counts if count]
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def nonfinite_values(nonfinite: "NonFinite") -> "NonFiniteDocument":
    """Return how many values were not finite, for JSON."""
    return {
        "nan": nonfinite.nan,
        "positive_infinities": nonfinite.positive,
        "negative_infinities": nonfinite.negative,
    }


def calibration_values(result: "CalibrationResult") -> "CalibrationDocument":
    """Return what was calibrated, for JSON."""
    return {
        "run": str(result.run.path),
        "calibration": str(result.run.calibration),
        "method": result.method,
        "samples": result.samples,
        "tensors": result.tensors,
        "parity": result.parity,
        "notes": list(result.notes),
        "dead": list(result.dead),
        "faint": list(result.faint),
        "shards": result.shards or None,
        "nonfinite": {name: nonfinite_values(found) for name, found in result.nonfinite.items()},
        "channels": dict(result.channels),
        "rescaled": [cast("RescalingDocument", item.values()) for item in result.rescaled],
    }


def after_calibration(result: "CalibrationResult") -> str:
    """Return the next command after a calibration, or after one of its shards."""
    if result.shards:
        return f"next, with the other shards: ptq merge {shlex.quote(str(result.run.path))} … --run all"
    return next_step("ptq export --onnx", result.run)


def print_moments(result: "MomentsResult") -> None:
    """Print of what there are moments now."""
    tensors, samples = counted(result.tensors, "tensor"), counted(result.samples, "sample")
    part = f" of {result.shards}" if result.shards else ""
    say(f"collected the moments of {tensors} on {samples}{part}")
    for line in refused_lines(result.refused, "has no moments", "have no moments"):
        say(line)
    say(f"wrote {shown_path(result.file)}")


def moments_values(result: "MomentsResult") -> "MomentsDocument":
    """Return of what there are moments, for JSON."""
    return {
        "run": str(result.run.path),
        "moments": str(result.file),
        "samples": result.samples,
        "tensors": result.tensors,
        "shards": result.shards or None,
        "without_moments": dict(result.refused),
    }


def after_moments(result: "MomentsResult") -> str:
    """Return the next command after moments, or after those of one shard."""
    if result.shards:
        return f"next, with the other shards: ptq merge {shlex.quote(str(result.run.path))} … --run all"
    return next_step("ptq export --recover weighed", result.run)


def print_merge(result: "MergeResult") -> None:
    """Print what was merged."""
    runs, samples = counted(result.runs, "run"), counted(result.samples, "sample")
    tensors = counted(result.tensors, "tensor")
    what = "moments" if result.method == "moments" else f"statistics: {result.method}"
    say(f"merged {runs}: {tensors} on {samples}, {what}")
    if result.shards:
        say(f"note: merged {result.shards}; missing: {result.missing}")
    say(f"wrote {shown_path(result.run.moments if result.method == 'moments' else result.run.calibration)}")


def merge_values(result: "MergeResult") -> "MergeDocument":
    """Return what was merged, for JSON."""
    return {
        "run": str(result.run.path),
        "calibration": str(result.run.calibration),
        "runs": result.runs,
        "method": result.method,
        "samples": result.samples,
        "tensors": result.tensors,
        "shards": result.shards or None,
        "missing": result.missing or None,
    }


def print_export(result: "ExportResult") -> None:
    """Print what was exported, and where it is."""
    print_quantized(result)
    share = share_of_float(result.bytes, result.float_bytes)
    say(f"wrote {shown_path(result.output)} ({format_bytes(result.bytes)}, {share})")


def print_quantized(result: "ExportResult") -> None:
    """Print what was quantized and how."""
    from ptq_cli.pipeline.exporting.file_metadata import quantizer_line

    integer = sum(layer.quantized for layer in result.plan.layers)
    say(quantized_line(result))
    if (latency := result.latency) is not None:
        measured = f"by '{shown_path(Path(latency.source))}'" if latency.source else "measured here"
        times = latency_line(
            latency.floating, latency.integer, latency.expected, latency.batch, latency.threads
        )
        say(f"{times}, {measured}")
        if not integer:
            say("warning: every layer stays in float, because the whole model is fastest so on that machine")
        if latency.undecided:
            say(f"warning: nothing was chosen by latency: {latency.undecided}")
    if result.kernels is not None:
        say(f"integer kernels of {result.kernels.runtime} on this CPU: {kernel_line(result.kernels)}")
    elif result.uncounted:
        say(f"integer kernels: not counted here, because {result.uncounted}; ptq verify counts them")
    if not result.plain:
        say(quantizer_line(result.weights, result.activations))
    floats = [layer for layer in result.plan.layers if layer.weight and not layer.quantized]
    if floats:
        runs = "runs" if len(floats) == 1 else "run"
        say(f"note: {counted(len(floats), 'layer')} {runs} in float with these weights; ptq inspect says why")
    stored = {site.node for site in result.plan.weights} - {layer.name for layer in floats}
    stored -= {layer.name for layer in result.plan.layers if layer.quantized}
    if stored:
        runs = "runs" if len(stored) == 1 else "run"
        what = f"{counted(len(stored), 'layer')} {runs} in float with integer weights"
        say(f"note: {what}; ptq inspect says why")
    for reason, count in Counter(result.never_run.values()).items():
        stay = "stays" if count == 1 else "stay"
        say(f"warning: {counted(count, 'layer')} {stay} in float: {reason}")
    for name, channels in result.widened.items():
        some = "1 channel" if channels == 1 else f"{channels:,} channels"
        say(f"note: {some} of '{name}' got a wider scale, so that the bias fits")
    for name, method in result.unsearched.items():
        say(f"note: {method} had only one candidate for '{name}': its whole range")
    for line in export_recovery_lines(result):
        say(line)


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


def latency_line(floating: float, integer: float, expected: float, batch: int, threads: int) -> str:
    """Return what the forms of a model take, from microseconds.

    Example:
        >>> latency_line(600.0, 800.0, 450.0, 1, 2)
        'at batch 1 and 2 threads: 600 µs in float, 800 µs in integers, 450 µs expected'
    """
    times = [format_latency(time / 1e6) for time in (floating, integer, expected)]
    counts = f"at batch {batch} and {counted(threads, 'thread')}"
    return f"{counts}: {times[0]} in float, {times[1]} in integers, {times[2]} expected"


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


def export_values(result: "ExportResult") -> "ExportedModelDocument":
    """Return what was exported, for JSON."""
    return {
        "output": str(result.output),
        "bytes": result.bytes,
        "float_bytes": result.float_bytes,
        "target": result.target,
        "amax": result.amax,
        "weight_amax": result.weight_amax,
        "overridden": list(result.overridden),
        "weights": dict(result.weights),
        "activations": dict(result.activations),
        "one_candidate": dict(result.unsearched),
        "integer_kernels": result.kernels.integer if result.kernels else None,
        "float_kernels": result.kernels.floating if result.kernels else None,
        "widened": dict(result.widened),
        "outliers": dict(result.outliers),
        "warnings": [
            {"code": item.code, "message": item.message, "hints": list(item.hints)}
            for item in result.warnings
        ],
        "never_run": dict(result.never_run),
        "ranges": ranges_values(result.ranges) if result.ranges is not None else None,
        "recovery": recovery_values(result.recovery) if result.recovery is not None else None,
        "latency": cast("PreferenceDocument | None", asdict(result.latency) if result.latency else None),
        "layers": [
            {
                "name": layer.name,
                "op": layer.op,
                "integer": layer.quantized,
                "weight": layer.weight,
                "reason": layer.reason,
            }
            for layer in result.plan.layers
        ],
    }


def print_report(report: Report) -> None:
    """Print the tables of a report, then the verdict."""
    table = label_table(report)
    print_table(table, right=tuple(range(1, len(table.header))))
    for line in no_interval_lines(report):
        say(line)
    print_table(class_table(report), right=(1, 2, 3, 4, 5))
    print_table(comparison_table(report), right=(1, 2))
    for line in level_lines(report):
        say(line)
    print_table(size_table(report), right=(2,))
    say(placement_line(report))
    print_speed(report.times)
    print_gates(report)


def print_speed(times: Times) -> None:
    """Print how fast the quantized model is."""
    for line in speed_lines(times):
        say(line)


def print_reports(reports: Sequence[Report]) -> None:
    """Print reports of several quantized models of one float model: a column for each, then the verdicts."""
    for table in several_tables(reports):
        print_table(table, right=tuple(range(1, len(table.header))))
    for report in reports:
        say(f"{report.model.quantized_model.name}:")
        print_speed(report.times)
        print_gates(report)


def say_written(run: "RunDirectory") -> None:
    """Print where a report was written."""
    say(f"wrote {shown_path(run.report_json)}, report.md, report.html and junit.xml")


def print_gates(report: Report) -> None:
    """Print each gate and the verdict."""
    print_table(gate_table(report))
    for line in doubt_lines(report):
        say(line)
    say(verdict_line(report))


def next_step(command: str, run: "RunDirectory", model: Path | None = None) -> str:
    """Return the next command; it names the run directory and the model where they are not the default.

    Example:
        >>> from ptq_cli.pipeline.run.run_directory import RunDirectory
        >>> next_step("ptq evaluate", RunDirectory(Path("b")), Path("w2.onnx"))
        'next: ptq evaluate w2.onnx --run b'
    """
    from ptq_cli.pipeline.run.run_directory import DEFAULT_RUN

    words = [command]
    if model is not None and os.path.realpath(model) != os.path.realpath(run.quantized_model):
        # A name that begins with a hyphen would be read as an option.
        words.append(shlex.quote(str(model) if not str(model).startswith("-") else f"./{model}"))
    if run.path != DEFAULT_RUN:
        words.append(f"--run {shlex.quote(str(run.path))}")
    return f"next: {' '.join(words)}"


def exit_status(report: Report) -> int:
    """Return 3 if a gate failed, otherwise 0."""
    return GATE_MISSED if report.verdict == "fail" else 0


def counted(number: int, noun: str) -> str:
    """Write a number and its noun.

    Example:
        >>> counted(1, "tensor"), counted(2, "tensor")
        ('1 tensor', '2 tensors')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def shown_path(path: Path) -> str:
    """Return a path as a user would type it: relative if it is below the current folder."""
    absolute, here = path.absolute(), Path.cwd()
    return str(absolute.relative_to(here)) if absolute.is_relative_to(here) else str(path)
