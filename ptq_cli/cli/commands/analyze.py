"""``ptq analyze``."""

from pathlib import Path
from typing import Any

import click

from ptq_cli.cli.options import BATCH_SIZE, JSON, PATH, RECIPES, RUN, THREADS, settings_from, take


@click.command(
    short_help="Show which layers lose accuracy, and what to try.",
    epilog="""\b
Examples:
  ptq analyze
  ptq analyze --layers 'stages.3.*' --samples 1000 --metric top1
  ptq analyze --no-sensitivity --top 20
""",
)
@click.argument("quantized_model", required=False, type=PATH)
@click.option(
    "--eval-data", "--data", metavar="PATH", help="Samples, with labels where the metric needs them."
)
@click.option(
    "--eval-samples", "--samples", type=int, metavar="N", help="Use only the first N samples.  [default: 256]"
)
@click.option("--metric", metavar="NAME", help="What a layer's drop is of.  [default: top1 with labels]")
@click.option(
    "--layers", multiple=True, metavar="PATTERN", help="Sensitivity of these layers only; may be given again."
)
@click.option("--no-sensitivity", is_flag=True, help="Tensors alone: a few forward passes.")
@click.option(
    "--rank-by",
    type=click.Choice(["sqnr", "metric"]),
    default="sqnr",
    show_default=True,
    help="Rank layers by SQNR or metric of the output with only that layer quantized.",
)
@click.option("--tensors", is_flag=True, help="Show tensors, and not layers.")
@click.option(
    "--top", type=click.IntRange(min=1), default=10, show_default=True, metavar="N", help="Rows to show."
)
@take(BATCH_SIZE, THREADS, RUN, RECIPES, JSON)
def command(
    quantized_model: Path | None,
    run: Path,
    recipe: Path | None,
    preset: str | None,
    layers: tuple[str, ...],
    no_sensitivity: bool,
    rank_by: str,
    tensors: bool,
    top: int,
    as_json: bool,
    **options: Any,
) -> None:
    """Find where the quantized model loses, and write analysis.json and report.html.

    QUANTIZED_MODEL is by default the one in the run directory. For every quantized tensor: its SQNR against
    the float model, by its own rounding and as the model runs. For every layer: what the output loses when
    only that layer is quantized, and when only that layer is left float. Beneath stands what to try.
    """
    import json

    from ptq_cli.cli.shown.analysis_tables import print_analysis
    from ptq_cli.cli.shown.output import print_json, say
    from ptq_cli.cli.shown.progress_bar import shown_progress
    from ptq_cli.cli.shown.result_lines import shown_path
    from ptq_cli.pipeline.inspection.analysis_subject import Question
    from ptq_cli.pipeline.inspection.run_analyze import run_analyze
    from ptq_cli.pipeline.run.resolve import Request
    from ptq_cli.pipeline.run.run_directory import RunDirectory
    from ptq_cli.report.analysis.analysis_document import analysis_to_json

    if options["metric"] is not None:
        options["metric"] = (options["metric"],)
    question = Question(layers, not no_sensitivity, "metric" if rank_by == "metric" else "sqnr")
    request = Request(settings=settings_from(options), model=None, recipe_file=recipe, preset=preset)
    with shown_progress() as progress:
        result = run_analyze(request, RunDirectory(run), quantized_model, question, progress)
    if as_json:
        print_json(json.loads(analysis_to_json(result.analysis)))
    else:
        print_analysis(result.analysis, run, top, tensors=tensors)
        say(" and ".join([f"wrote {shown_path(result.run.analysis)}", *result.also]))
