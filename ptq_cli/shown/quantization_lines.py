"""What ``ptq calibrate`` and ``ptq quantize`` made of a model or a folder, in lines."""

import shlex
from typing import TYPE_CHECKING

from ptq_cli.shown.export_lines import print_export, warn_of_outliers
from ptq_cli.shown.report_lines import add_report_to_step_summary, exit_status, print_evaluation, print_speed
from ptq_cli.terminal.output import detail, print_json, say, tell, warn_of_result
from ptq_cli.terminal.phrases import closeness, counted, next_step, shown_path

if TYPE_CHECKING:
    from ptq_cli.collectors.tensor_statistics import NonFinite
    from ptq_cli.pipeline.run_calibrate import CalibrationResult
    from ptq_cli.pipeline.run_merge import MergeResult
    from ptq_cli.pipeline.run_quantize import QuantizationResult


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
    warn_of_outliers(result.export.outliers, result.export.weight_amax)
    if as_json:
        print_json(result)
    else:
        print_calibration(result.calibration)
        print_export(result.export)
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
    print_speed(result.times)
    warn_of_result((*result.export.warnings, *result.times.warnings))
