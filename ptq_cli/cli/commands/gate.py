"""``ptq gate``."""

import json
from pathlib import Path
from typing import Any

import click

from ptq_cli.cli.options import GATES, JSON, PATH, settings_from, take


@click.command(
    short_help="Decide limits from a report alone.",
    epilog="""\b
Examples:
  ptq gate ptq-run/report.json --max-drop top1=0.01
  ptq gate ptq-run/report.json --max-drop top1=1% --max-size 1MB --strict
  ptq gate ptq-run/report.json --baseline old.json --max-regression top1=0.002

Exit status 3 if a limit is missed.
""",
)
@click.argument("report", type=PATH)
@take(GATES, JSON)
def command(report: Path, as_json: bool, **options: Any) -> int:
    """Decide limits from REPORT alone: no model is loaded, no data read.

    Without a limit, those that the report was made with are decided again. A limit is undecided where the
    95 % interval lies on both sides of it: then the measured value decides, and the doubt is printed.
    """
    from ptq_cli.cli.shown.output import print_json
    from ptq_cli.cli.shown.result_lines import exit_status, print_gates
    from ptq_cli.cli.shown.step_summary import add_to_step_summary
    from ptq_cli.pipeline.evaluation.run_gate import run_gate
    from ptq_cli.recipe.schema import GateSettings
    from ptq_cli.report.document.report_document import report_to_json
    from ptq_cli.report.text.markdown import gate_to_markdown

    decided = run_gate(report, GateSettings(**settings_from(options)))
    add_to_step_summary(gate_to_markdown(decided))
    if as_json:
        values = json.loads(report_to_json(decided))
        print_json({"verdict": values["verdict"], "gates": values["gates"]})
    else:
        print_gates(decided)
    return exit_status(decided)
