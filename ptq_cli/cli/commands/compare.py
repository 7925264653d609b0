"""``ptq compare``."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ptq_cli.cli.help_sections import OWN, SectionCommand, argument, option
from ptq_cli.cli.options.shared_options import GLOBALS, PATH, take

if TYPE_CHECKING:
    from ptq_cli.evaluation.report_changes import ReportChanges
    from ptq_cli.evaluation.trade_offs import TradeOffs


@click.command(
    cls=SectionCommand,
    short_help="Show what changed between reports.",
    epilog="""\b
Examples:
  ptq compare old.json ptq-run/report.json
  ptq compare main/report.json branch/report.json --json
  ptq compare runs/* --page compare.html
""",
)
@argument("reports", type=PATH, nargs=-1, metavar="REPORTS...")
@option(
    OWN,
    "--metric",
    metavar="NAME",
    help="Metric for the page, and for more than two reports.  [default: the first with labels]",
)
@option(OWN, "--page", type=PATH, metavar="FILE", help="Also write a page to this file.")
@take(GLOBALS)
def command(reports: tuple[Path, ...], metric: str | None, page: Path | None, as_json: bool) -> int:
    """Show what changed from one report to another, or several side by side.

    REPORTS are two or more files report.json, or the run directories that hold them.

    For two reports, the metrics of the quantized models, size, latency, models, settings, data and versions
    are compared, and which layers run as integers; layers that got worse, if an analysis.json is next to both
    reports; and intervals of the changes from paired samples, if the evaluation data are the same.

    For more, a table has the accuracy, size and speed of each model, and says which models no other one
    beats. With --page, the same is written as a page, for two reports with each layer.

    The exit status is 0 whatever changed. Use ptq gate --baseline to fail on a regression.
    """
    from ptq_cli.cli.terminal.output import print_json, say
    from ptq_cli.cli.terminal.phrases import shown_path
    from ptq_cli.pipeline.run_compare import run_compare_models

    result = run_compare_models(reports, metric, page)
    if as_json:
        print_json(result.changes if result.changes is not None else result.found)
        return 0
    if result.changes is not None:
        _show_changes(result.changes)
    else:
        _show_models(result.found)
    if page is not None:
        say(f"wrote {shown_path(page)}")
    return 0


def _show_changes(comparison: "ReportChanges") -> None:
    from ptq_cli.cli.terminal.output import print_table, say
    from ptq_cli.report.text import comparison as texts

    if not comparison.same_samples:
        say("note: the reports used different data, which also changes the metrics")
    print_table(texts.change_table(comparison), right=(1, 2, 3, 4))
    say(texts.size_line(comparison))
    if latency := texts.latency_line(comparison):
        say(latency)
    print_table(texts.difference_table(comparison))
    print_table(texts.moved_table(comparison))
    print_table(texts.worse_table(comparison), right=(2, 3, 4))
    say(texts.worse_line(comparison))
    if not comparison.changes and not comparison.layers:
        say("same model, settings, data and versions")


def _show_models(found: "TradeOffs") -> None:
    from ptq_cli.cli.terminal.output import print_table, say
    from ptq_cli.report.text.comparison import BEST, trade_off_table

    for note in found.notes:
        say(f"note: {note}")
    table = trade_off_table(found)
    print_table(table, right=tuple(range(1, len(table.header) - 1)))
    say(BEST)
