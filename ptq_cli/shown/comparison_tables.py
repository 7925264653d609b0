"""What ``ptq report A B`` shows: the changes between two reports, or several models side by side."""

from typing import TYPE_CHECKING

from ptq_cli.report.text import comparison as lines
from ptq_cli.report.text.comparison import BEST, trade_off_table
from ptq_cli.terminal.output import print_table, say

if TYPE_CHECKING:
    from ptq_cli.evaluation.report_changes import ReportChanges
    from ptq_cli.evaluation.trade_offs import TradeOffs
    from ptq_cli.pipeline.run_compare import ComparisonResult


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
