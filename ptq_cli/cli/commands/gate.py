"""``ptq gate``."""

from pathlib import Path
from typing import Any

import click

from ptq_cli.terminal.options.help_sections import SectionCommand, argument
from ptq_cli.terminal.options.model_options import (
    LATENCY_LIMIT,
    LIMITS,
    MAX_SIZE,
    PORTABLE,
    REGRESSION,
    STRICT,
)
from ptq_cli.terminal.options.shared_options import GLOBALS, PATH, set_option, settings_from, take


@click.command(
    cls=SectionCommand,
    only="gate",
    short_help="Check limits against a report.",
    epilog="""\b
Examples:
  ptq gate ptq-run/report.json --max-drop top1=1% --max-size 1MB --strict
  ptq gate ptq-run/report.json --baseline old.json --max-regression top1=0.002

Exits with status 3 if a limit fails.
""",
)
@argument("report", type=PATH)
@set_option("Set another limit: gate.max_ratio.perplexity=1.02. Can be repeated.")
@take(LIMITS, MAX_SIZE, LATENCY_LIMIT, PORTABLE, REGRESSION, STRICT, GLOBALS)
def command(report: Path, as_json: bool, **options: Any) -> int:
    """Check limits against REPORT, a report.json. No model is loaded and no data is read.

    If no limit is given, the limits in the report are checked again. If the 95 % confidence interval of a
    value contains the limit, the measured value decides, and a note says so; with --strict the limit fails.
    """
    from ptq_cli.evaluation.document.gate_result import Judgement
    from ptq_cli.pipeline.run_compare import run_gate
    from ptq_cli.recipe.sections import GateSettings
    from ptq_cli.report.text.markdown import gate_to_markdown
    from ptq_cli.shown.report_lines import print_gates, report_status
    from ptq_cli.terminal.output import add_to_step_summary, print_json

    decided = run_gate(report, GateSettings(**settings_from(options)))
    add_to_step_summary(gate_to_markdown(decided))
    if as_json:
        print_json(Judgement(decided.gates))
    else:
        print_gates(decided)
    return report_status(decided)
