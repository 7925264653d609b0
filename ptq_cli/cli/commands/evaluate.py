"""``ptq evaluate``."""

from pathlib import Path
from typing import Any

import click

from ptq_cli.cli.options import (
    BATCH_SIZE,
    CHECKPOINTS,
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
  ptq evaluate --model max.onnx --model mse.onnx --metric f1 --metric top5

Exit status 3 if a limit is missed.
""",
)
@click.argument("quantized_model", required=False, type=PATH)
@click.option(
    "--model",
    "models",
    type=PATH,
    multiple=True,
    metavar="FILE",
    help="A quantized model; several are evaluated in one pass.",
)
@click.option(
    "--eval-data", "--data", metavar="PATH", help="Evaluation set, with labels where a metric needs them."
)
@click.option("--eval-samples", "--samples", type=int, metavar="N", help="Use only the first N samples.")
@take(METRIC, GATES, THUMBNAILS, BATCH_SIZE, CHECKPOINTS, THREADS, RUN, RECIPES, JSON)
def command(
    quantized_model: Path | None,
    models: tuple[Path, ...],
    restart: bool,
    run: Path,
    recipe: Path | None,
    preset: str | None,
    as_json: bool,
    thumbnails: bool,
    **options: Any,
) -> int:
    """Compare the float and the quantized model, and write report.json, .md, .html and junit.xml.

    QUANTIZED_MODEL is by default the one in the run directory. All models see the evaluation set in one pass
    through ONNX Runtime; the reports of several lie in a folder each, RUN/NAME. An evaluation that was killed
    goes on where it was when the command is given again. Where there is neither ./ptq.toml nor --recipe, the
    run's own recipe.toml tells the rest.
    """
    import json

    from ptq_cli.cli.shown import result_lines as summaries
    from ptq_cli.cli.shown.output import print_json
    from ptq_cli.cli.shown.progress_bar import shown_progress
    from ptq_cli.cli.shown.step_summary import add_to_step_summary
    from ptq_cli.pipeline.evaluation.run_evaluate import run_evaluations
    from ptq_cli.pipeline.run.resolve import Request
    from ptq_cli.pipeline.run.run_directory import RunDirectory
    from ptq_cli.report.document.report_document import report_to_json
    from ptq_cli.report.text.markdown import report_to_markdown

    request = Request(settings=settings_from(options), model=None, recipe_file=recipe, preset=preset)
    named = [*([quantized_model] if quantized_model is not None else []), *models]
    with shown_progress() as progress:
        results = run_evaluations(
            request, RunDirectory(run), named, progress, restart=restart, thumbnails=thumbnails
        )
    for result in results:
        add_to_step_summary(report_to_markdown(result.report))
    if as_json:
        values = [json.loads(report_to_json(result.report)) for result in results]
        print_json(values[0] if len(values) == 1 else {"reports": values})
    elif len(results) == 1:
        summaries.print_report(results[0].report)
        summaries.say_written(results[0].run)
    else:
        summaries.print_reports([result.report for result in results])
        for result in results:
            summaries.say_written(result.run)
    return max(summaries.exit_status(result.report) for result in results)
