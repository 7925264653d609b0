"""``ptq report``."""

from pathlib import Path

import click

from ptq_cli.cli.options import JSON, RUN, take


@click.command(
    short_help="Write report.html again from a run directory.",
    epilog="""\b
Examples:
  ptq report
  ptq report --run runs/resnet
""",
)
@take(RUN, JSON)
def command(run: Path, as_json: bool) -> None:
    """Write report.html again from what the run directory holds; no model is run.

    ptq evaluate, ptq quantize and ptq analyze write the page themselves. This is for a run directory that was
    fetched from another machine, or whose page was made by an earlier ptq.
    """
    from ptq_cli.cli.shown.output import print_json, say
    from ptq_cli.cli.shown.result_lines import shown_path
    from ptq_cli.pipeline.evaluation.run_page import run_page
    from ptq_cli.pipeline.run.run_directory import RunDirectory

    result = run_page(RunDirectory(run))
    if as_json:
        print_json({"page": str(result.page), "notes": list(result.notes)})
        return
    for note in result.notes:
        say(f"note: {note}")
    say(f"wrote {shown_path(result.page)}")
