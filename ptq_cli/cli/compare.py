"""``ptq compare``."""

from pathlib import Path

import click

from ptq_cli.cli.options import JSON, PATH, take


@click.command(
    short_help="Show what changed between two reports.",
    epilog="""\b
Examples:
  ptq compare old.json ptq-run/report.json
  ptq compare main/report.json branch/report.json --json
""",
)
@click.argument("before", type=PATH)
@click.argument("after", type=PATH)
@take(JSON)
def command(before: Path, after: Path, as_json: bool) -> int:
    """Show what changed from the report BEFORE to the report AFTER.

    Metrics of the quantized models, the size of the file, models, settings, data and versions, and layers
    that run elsewhere. On the same evaluation data, a share's change has an interval from paired samples.
    Nothing is judged: the exit status is 0 whatever changed. To judge, use ptq gate --baseline.
    """
    from ptq_cli.cli.output import print_json, print_table, say
    from ptq_cli.pipeline.compare import run_compare
    from ptq_cli.report.codec import encode
    from ptq_cli.report.compare_summary import change_table, difference_table, moved_table, size_line

    comparison = run_compare(before, after)
    if as_json:
        print_json(encode(comparison))
        return 0
    if not comparison.same_samples:
        say("note: measured on other data; metrics differ by that, too")
    print_table(change_table(comparison), right=(1, 2, 3, 4))
    say(size_line(comparison))
    print_table(difference_table(comparison))
    print_table(moved_table(comparison))
    if not comparison.changes and not comparison.layers:
        say("same model, settings, data and versions")
    return 0
