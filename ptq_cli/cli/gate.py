"""``ptq gate``."""

import json
from pathlib import Path

import click

from ptq_cli.cli.options import GATES, JSON, PATH, take


@click.command(
    short_help="Decide limits from a report alone.",
    epilog="""\b
Examples:
  ptq gate ptq-run/report.json --max-drop top1=0.01
  ptq gate ptq-run/report.json --max-drop top1=0.001 --min sqnr_db=25

Exit status 3 if a limit is missed.
""",
)
@click.argument("report", type=PATH)
@take(GATES, JSON)
def command(report: Path, max_drop: tuple[str, ...], minimum: tuple[str, ...], as_json: bool) -> int:
    """Decide limits from REPORT alone: no model is loaded, no data read.

    Without a limit, those that the report was made with are shown again.
    """
    from ptq_cli.cli.output import print_json
    from ptq_cli.cli.summaries import exit_status, print_gates
    from ptq_cli.pipeline.gate import run_gate
    from ptq_cli.report.document import report_to_json
    from ptq_cli.report.gate import MAX_DROP_FLAG, MIN_FLAG, parse_limits

    limits = parse_limits(max_drop, MAX_DROP_FLAG), parse_limits(minimum, MIN_FLAG)
    decided = run_gate(report, *limits)
    if as_json:
        values = json.loads(report_to_json(decided))
        print_json({"verdict": values["verdict"], "gates": values["gates"]})
    else:
        print_gates(decided)
    return exit_status(decided)
