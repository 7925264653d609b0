"""What ``ptq quantize`` made of a model or a folder, and what ``ptq tune`` tried and chose, in lines."""

from typing import TYPE_CHECKING

from ptq_cli.shown.calibration_lines import print_calibration
from ptq_cli.shown.export_lines import print_export, warn_of_outliers
from ptq_cli.shown.report_lines import (
    add_report_to_step_summary,
    exit_status,
    print_evaluation,
    print_speed,
)
from ptq_cli.terminal.output import print_json, tell, warn_of_result
from ptq_cli.terminal.phrases import next_step

if TYPE_CHECKING:
    from ptq_cli.pipeline.run_quantize import QuantizationResult


# How a quantization is shown, from calibration to report.


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
