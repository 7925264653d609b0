"""``ptq evaluate``."""

from pathlib import Path
from typing import Any

import click

from ptq_cli.cli.help.help_sections import DATA, OWN, SectionCommand, option
from ptq_cli.cli.options import completion
from ptq_cli.cli.options.data_options import BATCH_SIZE, CHECKPOINTS, RENAME
from ptq_cli.cli.options.gate_options import GATES, LATENCY, METRIC, THUMBNAILS
from ptq_cli.cli.options.global_options import GLOBALS
from ptq_cli.cli.options.shared_options import PATH, RECIPES, RUN, SERVE_BATCH, THREADS, settings_from, take


@click.command(
    cls=SectionCommand,
    short_help="Compare the quantized model with the float model.",
    epilog="""\b
Examples:
  ptq evaluate
  ptq evaluate --eval-data test.npz --max-drop top1=0.01 --min sqnr_db=25
  ptq evaluate --model max.onnx --model mse.onnx --metric f1 --metric top5

Exits with status 3 if a limit fails.
""",
)
@click.argument("quantized_model", required=False, type=PATH)
@option(
    OWN,
    "--model",
    "models",
    type=PATH,
    multiple=True,
    metavar="FILE",
    help="Quantized model to evaluate. Can be repeated; all models are evaluated in one pass.",
)
@option(
    DATA,
    "--eval-data",
    "--data",
    shell_complete=completion.complete_files,
    metavar="PATH",
    help="Evaluation data, with labels if a metric needs them.",
)
@option(DATA, "--eval-samples", "--samples", type=int, metavar="N", help="Number of samples.  [default: all]")
@take(
    METRIC,
    GATES,
    LATENCY,
    THUMBNAILS,
    BATCH_SIZE,
    RENAME,
    CHECKPOINTS,
    THREADS,
    SERVE_BATCH,
    RUN,
    RECIPES,
    GLOBALS,
)
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
    """Compare the quantized model with the float model, and write report.json, .md, .html and junit.xml.

    QUANTIZED_MODEL defaults to the model in the run directory. All models run on the evaluation data in one
    pass through ONNX Runtime; several quantized models get a report each, in RUN/NAME. An evaluation that was
    interrupted continues when the command is run again. Without ./ptq.toml and --recipe, settings come from
    recipe.toml in the run directory.
    """
    import json

    from ptq_cli.cli.shown import result_lines as summaries
    from ptq_cli.cli.shown.output import print_json
    from ptq_cli.cli.shown.progress_bar import shown_progress
    from ptq_cli.cli.shown.step_summary import add_to_step_summary
    from ptq_cli.cli.shown.warning_lines import warn_of_result
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
    for result in [] if as_json else results:
        warn_of_result(result.report.all_warnings)
    return max(summaries.exit_status(result.report) for result in results)
