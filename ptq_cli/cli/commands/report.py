"""``ptq report``."""

from pathlib import Path

import click

from ptq_cli.terminal.options.help_sections import SectionCommand
from ptq_cli.terminal.options.shared_options import GLOBALS, RUN, take


@click.command(
    cls=SectionCommand,
    short_help="Write report.html again.",
    epilog="""\b
Examples:
  ptq report
  ptq report --run runs/resnet
""",
)
@take(RUN, GLOBALS)
def command(run: Path, as_json: bool) -> None:
    """Write report.html again from the files in the run directory. No model is run.

    ptq evaluate, ptq quantize, ptq analyze and ptq verify --answers write the page themselves. Use this
    command for a run directory from another machine, or for a page that an earlier version of ptq wrote.
    """
    from ptq_cli.pipeline.evaluation.report_page import run_page
    from ptq_cli.setup.run_directory import RunDirectory
    from ptq_cli.terminal.output import print_json, say
    from ptq_cli.terminal.phrases import shown_path

    result = run_page(RunDirectory(run))
    if as_json:
        print_json(result)
        return
    for note in result.notes:
        say(f"note: {note}")
    say(f"wrote {shown_path(result.page)}")
