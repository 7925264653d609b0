"""How reports are shown: tables, the verdict, warnings, exit status; and what changed between reports."""

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptq_cli.core.process import DONE
from ptq_cli.evaluation.document.gate_result import Times
from ptq_cli.evaluation.document.report_document import Report, Reports
from ptq_cli.report.text import comparison as lines
from ptq_cli.report.text import summary
from ptq_cli.report.text.comparison import BEST, trade_off_table
from ptq_cli.report.text.gates import doubt_lines, gate_table
from ptq_cli.report.text.markdown import report_to_markdown
from ptq_cli.report.text.speed import speed_lines
from ptq_cli.report.text.summary import generation_lines, stream_lines, stream_table
from ptq_cli.terminal.output import (
    add_to_step_summary,
    detail,
    is_quiet,
    print_json,
    print_table,
    say,
    tell,
    warn_of_result,
)
from ptq_cli.terminal.phrases import counted, next_step, shown_path

if TYPE_CHECKING:
    from ptq_cli.evaluation.report_changes import ReportChanges, TradeOffs
    from ptq_cli.pipeline.evaluation.reports import EvaluationResult
    from ptq_cli.pipeline.run_compare import ComparisonResult
    from ptq_cli.pipeline.run_evaluate import EvaluationShardResult
    from ptq_cli.setup.run_directory import RunDirectory


GATE_MISSED = 3


def show_reports(results: "Sequence[EvaluationResult]", *, as_json: bool) -> int:
    """Print the reports of an evaluation, and return the status to exit with."""
    for result in results:
        add_report_to_step_summary(result)
    if as_json:
        reports = tuple(result.report for result in results)
        print_json(reports[0] if len(reports) == 1 else Reports(reports))
    elif len(results) == 1:
        print_evaluation(results[0])
    else:
        print_reports([result.report for result in results])
        for result in results:
            say_written(result.run)
        for result in results:
            warn_of_result(result.report.all_warnings)
    return max(exit_status(result) for result in results)


def show_shard(result: "EvaluationShardResult", *, as_json: bool) -> int:
    """Print what was measured of one part of an evaluation, and return the status to exit with."""
    if as_json:
        print_json(result)
        return DONE
    detail(f"evaluated {counted(result.samples, result.unit)} of {result.shard}")
    say(f"wrote {shown_path(result.file)}")
    step = next_step(f"ptq merge {shlex.quote(str(result.run.path))}", result.run)
    tell(step.replace("next:", "next, with the other shards:", 1))
    return DONE


def print_evaluation(result: "EvaluationResult") -> None:
    """Print a report, where it was written, and its warnings."""
    print_report(result.report)
    say_written(result.run)
    warn_of_result(result.report.all_warnings)


def add_report_to_step_summary(result: "EvaluationResult | None") -> None:
    """Add the report of an evaluation, if there is one, to the summary of a CI server's step."""
    if result is not None:
        add_to_step_summary(report_to_markdown(result.report))


def print_report(report: Report) -> None:
    """Print the tables of a report, then the verdict."""
    if not is_quiet():
        _print_tables(report)
    print_speed(report.times)
    print_gates(report)


def _print_tables(report: Report) -> None:
    table = summary.label_table(report)
    print_table(table, right=tuple(range(1, len(table.header))))
    for line in summary.no_interval_lines(report):
        say(line)
    print_table(summary.class_table(report), right=(1, 2, 3, 4, 5))
    print_table(summary.comparison_table(report), right=(1, 2))
    table = stream_table(report)
    print_table(table, right=tuple(range(1, len(table.header))))
    for line in (*stream_lines(report), *generation_lines(report), *summary.level_lines(report)):
        say(line)
    print_table(summary.size_table(report), right=(2,))
    say(summary.placement_line(report))
    for line in summary.saturation_lines(report):
        say(line)


def print_speed(times: Times) -> None:
    """Print how fast the quantized model is."""
    for line in speed_lines(times):
        detail(line)


def print_reports(reports: Sequence[Report]) -> None:
    """Print reports of several quantized models of one float model: a column for each, then the verdicts."""
    for table in summary.several_tables(reports) if not is_quiet() else ():
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
    if not is_quiet():
        print_table(gate_table(report))
    for line in doubt_lines(report):
        detail(line)
    say(summary.verdict_line(report))


def exit_status(result: "EvaluationResult | None") -> int:
    """Return 3 if there is an evaluation and a gate failed, otherwise 0."""
    return DONE if result is None else report_status(result.report)


def report_status(report: Report) -> int:
    """Return 3 if a gate failed, otherwise 0."""
    return GATE_MISSED if report.verdict == "fail" else DONE


def print_comparison(result: "ComparisonResult") -> None:
    """Print what changed between two reports, or the table of more."""
    if result.changes is not None:
        _show_changes(result.changes)
    else:
        _show_models(result.found)


def _show_changes(comparison: "ReportChanges") -> None:
    if not comparison.same_samples:
        say("note: the reports used different data, which also changes the metrics")
    print_table(lines.change_table(comparison), right=(1, 2, 3, 4))
    say(lines.size_line(comparison))
    if latency := lines.latency_line(comparison):
        say(latency)
    print_table(lines.difference_table(comparison))
    print_table(lines.moved_table(comparison))
    print_table(lines.worse_table(comparison), right=(2, 3, 4))
    say(lines.worse_line(comparison))
    if not comparison.changes and not comparison.layers:
        say("same model, settings, data and versions")


def _show_models(found: "TradeOffs") -> None:
    for note in found.notes:
        say(f"note: {note}")
    table = trade_off_table(found)
    print_table(table, right=tuple(range(1, len(table.header) - 1)))
    say(BEST)
