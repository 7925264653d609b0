"""Lines of a quantized or evaluated folder of models: each file, the table, and what was written."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ptq_cli.core.process import DONE
from ptq_cli.core.words import format_bytes
from ptq_cli.evaluation.document.report_document import Reports
from ptq_cli.report.text.numbers import Table, share_of_float
from ptq_cli.shown.export_lines import print_calibration, print_quantized
from ptq_cli.shown.report_lines import GATE_MISSED, add_report_to_step_summary, exit_status, print_evaluation
from ptq_cli.terminal.output import detail, print_json, print_table, say
from ptq_cli.terminal.phrases import counted, shown_path

if TYPE_CHECKING:
    from ptq_cli.folders.quantize_folder import FolderResult, QuantizedFolderFile
    from ptq_cli.pipeline.evaluation.reports import EvaluationResult
    from ptq_cli.pipeline.run_quantize import QuantizationResult
from ptq_cli.shown.export_lines import print_judgement


def show_folder(result: "FolderResult", *, as_json: bool) -> int:
    """Print what was made of a folder, and return the exit status: 3 if a limit of one file failed."""
    for item in result.files:
        if item.result is not None:
            add_report_to_step_summary(item.result.evaluation)
    if as_json:
        print_json(result)
    else:
        print_folder(result)
    return DONE if result.passed else GATE_MISSED


def print_folder(result: "FolderResult") -> None:
    """Print what was made of each file, then the summary."""
    for item in result.files:
        detail(f"{item.file.as_posix()}:")
        if item.result is None:
            detail(f"note: copied as it is, in float: {item.reason}")
        else:
            _print_file(item.result)
    rows = [_row(item) for item in result.files]
    print_table(Table(("file", "quantized", "verdict"), tuple(rows)), whole=(0, 2))
    if result.shared_constants:
        saved = format_bytes(result.saved_bytes)
        detail(
            f"{counted(result.shared_constants, 'constant')} shared by several models, stored once: "
            f"{saved} saved"
        )
    for file in result.left_out:
        detail(f"note: '{file.as_posix()}' is quantized already, and was left out")
    share = share_of_float(result.bytes, result.float_bytes)
    beside = f", with {', '.join(file.as_posix() for file in result.carried)}" if result.carried else ""
    models = counted(len(result.files), "model")
    say(f"wrote {models} into {shown_path(result.output)} ({format_bytes(result.bytes)}, {share}){beside}")
    if result.config is not None:
        say(f"wrote {shown_path(result.config)}")
    say(f"wrote {shown_path(result.summary)}")


def _print_file(result: "QuantizationResult") -> None:
    print_calibration(result.calibration)
    print_quantized(result.export)
    if taken := result.export.taken:
        detail(f"reused the integers and scales of {counted(taken, 'weight')} from a model above")
    print_judgement(result)


def show_folder_reports(results: Mapping[Path, "EvaluationResult"], *, as_json: bool) -> int:
    """Print the reports of a folder's models, and return the exit status: 3 if a limit of one failed."""
    for item in results.values():
        add_report_to_step_summary(item)
    if as_json:
        print_json(Reports(tuple(item.report for item in results.values())))
    else:
        for name, item in results.items():
            say(f"{name.as_posix()}:")
            print_evaluation(item)
    return max(exit_status(item) for item in results.values())


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
