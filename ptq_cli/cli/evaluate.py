"""``ptq evaluate``."""

from pathlib import Path
from typing import Any

import click

from ptq_cli.cli.options import (
    BATCH_SIZE,
    GATES,
    JSON,
    METRIC,
    PATH,
    RECIPES,
    RUN,
    THREADS,
    THUMBNAILS,
    settings_from,
    take,
)


@click.command(
    short_help="Compare float and quantized model; report.",
    epilog="""\b
Examples:
  ptq evaluate
  ptq evaluate --eval-data test.npz --max-drop top1=0.01 --min sqnr_db=25

Exit status 3 if a limit is missed.
""",
)
@click.argument("quantized_model", required=False, type=PATH)
@click.option(
    "--eval-data", "--data", metavar="PATH", help="Evaluation set, with labels where a metric needs them."
)
@click.option("--eval-samples", "--samples", type=int, metavar="N", help="Use only the first N samples.")
@take(METRIC, GATES, THUMBNAILS, BATCH_SIZE, THREADS, RUN, RECIPES, JSON)
def command(
    quantized_model: Path | None,
    run: Path,
    recipe: Path | None,
    preset: str | None,
    as_json: bool,
    thumbnails: bool,
    **options: Any,
) -> int:
    """Compare the float and the quantized model, and write report.json, .md, .html and junit.xml.

    QUANTIZED_MODEL is by default the one in the run directory. Both models see the evaluation set in one
    pass through ONNX Runtime. Where there is neither ./ptq.toml nor --recipe, the run's own recipe.toml
    tells the rest.
    """
    import json

    from ptq_cli.cli import summaries
    from ptq_cli.cli.output import print_json, say
    from ptq_cli.cli.progress import shown_progress
    from ptq_cli.cli.step_summary import add_to_step_summary
    from ptq_cli.pipeline.evaluate import run_evaluate
    from ptq_cli.pipeline.resolve import Request
    from ptq_cli.pipeline.run_directory import RunDirectory
    from ptq_cli.report.document import report_to_json
    from ptq_cli.report.markdown import report_to_markdown

    request = Request(settings_from(options), None, recipe, preset)
    with shown_progress() as progress:
        result = run_evaluate(request, RunDirectory(run), quantized_model, progress, thumbnails=thumbnails)
    add_to_step_summary(report_to_markdown(result.report))
    if as_json:
        print_json(json.loads(report_to_json(result.report)))
    else:
        summaries.print_report(result.report)
        say(f"wrote {summaries.shown_path(result.run.report_json)}, report.md, report.html and junit.xml")
    return summaries.exit_status(result.report)
