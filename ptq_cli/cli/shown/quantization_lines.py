"""How a quantization is shown, from calibration to report: lines for a person, values for ``--json``."""

from typing import TYPE_CHECKING, Any

from ptq_cli.cli.shown.calibration_lines import calibration_values, print_calibration
from ptq_cli.cli.shown.export_lines import export_values, print_export
from ptq_cli.cli.shown.outlier_warning import warn_of_outliers
from ptq_cli.cli.shown.report_lines import (
    add_report_to_step_summary,
    exit_status,
    print_evaluation,
    print_speed,
    report_values,
)
from ptq_cli.cli.shown.terminal.output import print_json, tell
from ptq_cli.cli.shown.terminal.phrases import next_step
from ptq_cli.cli.shown.terminal.warning_lines import warn_of_result
from ptq_cli.core.documents.json_values import encode

if TYPE_CHECKING:
    from ptq_cli.pipeline.run_quantize import QuantizationResult


def show_quantization(result: "QuantizationResult", *, as_json: bool) -> int:
    """Print what was quantized, and return the status to exit with."""
    add_report_to_step_summary(result.evaluation)
    warn_of_outliers(result.export.outliers)
    if as_json:
        print_json(quantization_values(result))
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


def quantization_values(result: "QuantizationResult") -> dict[str, Any]:
    """Return what was quantized, for JSON."""
    return {
        "calibration": calibration_values(result.calibration),
        "export": export_values(result.export),
        "report": report_values(result.evaluation),
        "times": encode(result.times),
    }
