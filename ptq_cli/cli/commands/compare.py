"""``ptq compare``."""

from pathlib import Path

import click

from ptq_cli.cli.help.help_sections import SectionCommand
from ptq_cli.cli.options.global_options import GLOBALS
from ptq_cli.cli.options.shared_options import PATH, take


@click.command(
    cls=SectionCommand,
    short_help="Show what changed between two reports.",
    epilog="""\b
Examples:
  ptq compare old.json ptq-run/report.json
  ptq compare main/report.json branch/report.json --json
""",
)
@click.argument("before", type=PATH)
@click.argument("after", type=PATH)
@take(GLOBALS)
def command(before: Path, after: Path, as_json: bool) -> int:
    """Show what changed from the report BEFORE to the report AFTER.

    Compares the metrics of the quantized models, size, latency, models, settings, data and versions, and
    which layers run as integers. If ptq analyze wrote an analysis.json next to both reports, layers that got
    worse are listed too. If both reports used the same evaluation data, changes of shares have an interval
    from paired samples.

    The exit status is 0 whatever changed. Use ptq gate --baseline to fail on a regression.
    """
    from ptq_cli.cli.shown.output import print_json, print_table, say
    from ptq_cli.core.json_values import encode
    from ptq_cli.pipeline.evaluation.run_compare import run_compare
    from ptq_cli.report.text.compare_summary import (
        change_table,
        difference_table,
        latency_line,
        moved_table,
        size_line,
        worse_line,
        worse_table,
    )

    comparison = run_compare(before, after)
    if as_json:
        print_json(encode(comparison))
        return 0
    if not comparison.same_samples:
        say("note: the reports used different data, which also changes the metrics")
    print_table(change_table(comparison), right=(1, 2, 3, 4))
    say(size_line(comparison))
    if latency := latency_line(comparison):
        say(latency)
    print_table(difference_table(comparison))
    print_table(moved_table(comparison))
    print_table(worse_table(comparison), right=(2, 3, 4))
    say(worse_line(comparison))
    if not comparison.changes and not comparison.layers:
        say("same model, settings, data and versions")
    return 0
