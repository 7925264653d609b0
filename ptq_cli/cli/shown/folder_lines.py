"""What was made of a folder: lines for each file, and a summary."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptq_cli.cli.shown.result_lines import (
    calibration_values,
    counted,
    exit_status,
    export_values,
    print_calibration,
    print_quantized,
    print_report,
    print_speed,
    say_written,
    shown_path,
)
from ptq_cli.cli.shown.terminal.output import print_json, print_table, say
from ptq_cli.cli.shown.terminal.step_summary import add_to_step_summary
from ptq_cli.cli.shown.terminal.warning_lines import warn_of_result
from ptq_cli.core.documents.json_values import encode
from ptq_cli.core.short_numbers import format_bytes
from ptq_cli.report.document.report_document import report_to_json
from ptq_cli.report.text.markdown import report_to_markdown
from ptq_cli.report.text.summary import Table, share_of_float

if TYPE_CHECKING:
    from ptq_cli.pipeline.evaluation.written.made_reports import EvaluationResult
    from ptq_cli.pipeline.folders.folder_result import FolderResult, QuantizedFolderFile
    from ptq_cli.pipeline.run_quantize import QuantizationResult


def print_folder(result: "FolderResult") -> None:
    """Print what was made of each file, then the summary."""
    for item in result.files:
        say(f"{item.file.as_posix()}:")
        if item.result is None:
            say(f"note: copied as it is, in float: {item.reason}")
        else:
            _print_file(item.result)
    rows = [_row(item) for item in result.files]
    print_table(Table(("file", "quantized", "verdict"), tuple(rows)), whole=(0, 2))
    if result.shared:
        saved = format_bytes(result.saved)
        say(f"{counted(result.shared, 'constant')} shared by several models, stored once: {saved} saved")
    for file in result.left_out:
        say(f"note: '{file.as_posix()}' is quantized already, and was left out")
    share = share_of_float(result.bytes, result.float_bytes)
    beside = f", with {', '.join(file.as_posix() for file in result.carried)}" if result.carried else ""
    models = counted(len(result.files), "model")
    say(f"wrote {models} into {shown_path(result.output)} ({format_bytes(result.bytes)}, {share}){beside}")
    say(f"wrote {shown_path(result.summary)}")


def add_folder_to_step_summary(result: "FolderResult") -> None:
    """Add the reports of all files that were evaluated to the summary of a CI server's step."""
    made = [item.result for item in result.files if item.result is not None]
    for report in [item.evaluation.report for item in made if item.evaluation is not None]:
        add_to_step_summary(report_to_markdown(report))


def _print_file(result: "QuantizationResult") -> None:
    print_calibration(result.calibration)
    print_quantized(result.export)
    if taken := result.export.taken:
        say(f"took the integers and scales of {counted(taken, 'weight')} from a model above")
    if result.evaluation is None:
        print_speed(result.times)
        warn_of_result((*result.export.warnings, *result.times.warnings))
        return
    report = result.evaluation.report
    print_report(report)
    say_written(result.calibration.run)
    warn_of_result(report.all_warnings)


def show_folder_reports(results: Mapping[Path, "EvaluationResult"], *, as_json: bool) -> int:
    """Print the reports of a folder's models, and return the exit status: 3 if a limit of one failed."""
    for item in results.values():
        add_to_step_summary(report_to_markdown(item.report))
    if as_json:
        print_json({"reports": [json.loads(report_to_json(item.report)) for item in results.values()]})
    else:
        for name, item in results.items():
            say(f"{name.as_posix()}:")
            print_report(item.report)
            say_written(item.run)
            warn_of_result(item.report.all_warnings)
    return max(exit_status(item.report) for item in results.values())


def _row(item: "QuantizedFolderFile") -> tuple[str, str, str]:
    name = item.output.name
    if item.result is None:
        return name, "nothing", "not evaluated"
    export = item.result.export
    integer = sum(layer.quantized for layer in export.plan.layers)
    weights = len({site.node for site in export.plan.weights})
    what = f"{counted(integer, 'layer')}" if integer else f"the weights of {counted(weights, 'layer')}"
    evaluation = item.result.evaluation
    return name, what, evaluation.report.verdict if evaluation is not None else "not evaluated"


def folder_values(result: "FolderResult") -> dict[str, Any]:
    """Return what was made of a folder, for JSON: the summary, and of each file what a single one has."""
    values = result.values()
    for found, item in zip(values["files"], result.files, strict=True):
        made = item.result
        evaluation = made.evaluation if made is not None else None
        found["calibration"] = calibration_values(made.calibration) if made is not None else None
        found["export"] = export_values(made.export) if made is not None else None
        found["report"] = json.loads(report_to_json(evaluation.report)) if evaluation is not None else None
        found["times"] = encode(made.times) if made is not None else None
    return values
