"""``ptq analyze``."""

from pathlib import Path
from typing import Any

import click

from ptq_cli.terminal.options.help_sections import DATA, OWN, SectionCommand, argument, option
from ptq_cli.terminal.options.model_options import data_option
from ptq_cli.terminal.options.shared_options import GLOBALS, PATH, RECIPES, RUN, request_from, take


@click.command(
    cls=SectionCommand,
    short_help="Show which layers lose accuracy, and what to try.",
    epilog="""\b
Examples:
  ptq analyze
  ptq analyze --layers 'stages.3.*' --samples 1000 --metric top1
  ptq analyze --no-sensitivity
  ptq analyze --model-explorer sqnr.json
""",
)
@argument("quantized_model", required=False, type=PATH)
@data_option(
    "Evaluation data, with labels if the metric needs them.  [default: data of the last ptq evaluate]",
    "--eval-data",
    "--data",
)
@option(DATA, "--eval-samples", "--samples", type=int, metavar="N", help="Number of samples.  [default: 256]")
@option(
    OWN, "--metric", metavar="NAME", help="Metric for each layer's drop.  [default: top1 if there are labels]"
)
@option(
    OWN,
    "--layers",
    multiple=True,
    metavar="PATTERN",
    help="Measure the sensitivity of the matching layers only. Can be repeated.",
)
@option(
    OWN,
    "--skip-layers",
    multiple=True,
    metavar="PATTERN",
    help="Do not measure the sensitivity of the matching layers. Can be repeated.",
)
@option(
    OWN,
    "--no-sensitivity",
    is_flag=True,
    help="Measure tensors only, not the sensitivity of layers; takes a few forward passes.",
)
@option(
    OWN,
    "--rank-by",
    type=click.Choice(["sqnr", "metric"]),
    default="sqnr",
    show_default=True,
    help="Sort layers by the SQNR or by the metric of the output when only that layer is quantized.",
)
@option(OWN, "--tensors", is_flag=True, help="Show tensors instead of layers.")
@option(
    OWN,
    "--top",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    metavar="N",
    help="Number of rows to show.",
)
@option(
    OWN,
    "--model-explorer",
    type=PATH,
    metavar="FILE",
    help="Also write overlays for Model Explorer: SQNR to FILE; kernels, bits and times beside it.",
)
@take(RUN, RECIPES, GLOBALS)
def command(
    quantized_model: Path | None,
    run: Path,
    layers: tuple[str, ...],
    skip_layers: tuple[str, ...],
    no_sensitivity: bool,
    rank_by: str,
    tensors: bool,
    top: int,
    model_explorer: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Find where the quantized model loses accuracy, and write analysis.json and report.html.

    QUANTIZED_MODEL defaults to the model in the run directory. For each quantized tensor, the analysis shows
    its SQNR compared with the float model: from its own rounding alone, and when the whole model is
    quantized. For each layer, it shows what the output loses when only that layer is quantized, and when
    only that layer stays in float. Suggestions of what to try follow below.

    Without --eval-data, the data of the run's last ptq evaluate are used, or else those of the recipe, or
    those of the calibration.
    """
    from ptq_cli.analysis.analysis_subject import Question
    from ptq_cli.analysis.run_analyze import run_analyze
    from ptq_cli.analysis.terminal_tables import print_analysis
    from ptq_cli.report.text.result_warnings import saturation_warnings
    from ptq_cli.setup.run_directory import RunDirectory
    from ptq_cli.terminal.output import print_json, say, warn_of_result
    from ptq_cli.terminal.phrases import shown_path
    from ptq_cli.terminal.progress_bar import shown_progress

    if options["metric"] is not None:
        options["metric"] = (options["metric"],)
    question = Question(layers, not no_sensitivity, "metric" if rank_by == "metric" else "sqnr", skip_layers)
    request = request_from(options)
    with shown_progress() as progress:
        result = run_analyze(
            request, RunDirectory(run), quantized_model, question, progress, overlay=model_explorer
        )
    if as_json:
        print_json(result.analysis)
    else:
        print_analysis(
            result.analysis, run, top, tensors=tensors, is_last=result.is_last_evaluation, unit=result.unit
        )
        say(" and ".join([f"wrote {shown_path(result.run.analysis)}", *result.also]))
        if result.overlays:
            say(f"wrote {', '.join(shown_path(path) for path in result.overlays)} for Model Explorer")
    warn_of_result(saturation_warnings(result.saturation))
