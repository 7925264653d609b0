"""``ptq evaluate``."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ptq_cli.terminal.options.help_sections import DATA, OWN, SectionCommand, argument, option
from ptq_cli.terminal.options.model_options import (
    ENGINE,
    GENERATE,
    LATENCY_LIMIT,
    LIMITS,
    METRIC,
    PORTABLE,
    REGRESSION,
    RESTART,
    SHARD,
    data_option,
)
from ptq_cli.terminal.options.shared_options import GLOBALS, PATH, RECIPES, RUN, once_from, request_from, take


@click.command(
    cls=SectionCommand,
    once=("restart",),
    short_help="Compare the quantized model with the float model.",
    epilog="""\b
Examples:
  ptq evaluate
  ptq evaluate --eval-data test.npz --max-drop top1=0.01 --min sqnr_db=25
  ptq evaluate --model max.onnx --model mse.onnx --metric f1 --metric top5
  ptq evaluate --shard 2/8
  torchrun --nproc-per-node=4 -m ptq_cli -- evaluate --eval-data test.npz

Exits with status 3 if a limit fails.
""",
)
@argument("quantized_model", required=False, type=PATH)
@option(
    OWN,
    "--model",
    "models",
    type=PATH,
    multiple=True,
    metavar="FILE",
    help="Quantized model to evaluate. Can be repeated; all models are evaluated in one pass.",
)
@data_option("Evaluation data, with labels if a metric needs them.", "--eval-data", "--data")
@option(DATA, "--eval-samples", "--samples", type=int, metavar="N", help="Number of samples.  [default: all]")
@take(
    METRIC,
    GENERATE,
    LIMITS,
    LATENCY_LIMIT,
    PORTABLE,
    REGRESSION,
    SHARD,
    RESTART,
    ENGINE,
    RUN,
    RECIPES,
    GLOBALS,
)
def command(
    quantized_model: Path | None,
    models: tuple[Path, ...],
    shard: str | None,
    restart: bool,
    run: Path,
    as_json: bool,
    **options: Any,
) -> int:
    """Compare the quantized model with the float model, and write report.json, .md, .html and junit.xml.

    QUANTIZED_MODEL defaults to the model in the run directory. All models run on the evaluation data in one
    pass; several quantized models get a report each, in RUN/NAME. An interrupted evaluation continues when
    the command is run again. Without ./ptq.toml and --recipe, settings come from recipe.toml in the run
    directory.

    With --shard, or under torchrun, several processes share the work; the report is the same, byte for byte,
    except for its times. A shard is written to the run directory, and ptq merge makes the report from all.

    QUANTIZED_MODEL may be a folder that ptq quantize made: each model in it gets a report in RUN/NAME.
    """
    from ptq_cli.core.read_files import is_folder
    from ptq_cli.folders.evaluate_folder import require_sole, run_evaluate_folder
    from ptq_cli.folders.folder_lines import show_folder_reports
    from ptq_cli.pipeline.run_evaluate import run_evaluation_shard, run_evaluations
    from ptq_cli.setup.run_directory import RunDirectory
    from ptq_cli.shown.report_lines import show_reports, show_shard
    from ptq_cli.terminal.progress_bar import shown_progress

    request = request_from(options)
    named = [*([quantized_model] if quantized_model is not None else []), *models]
    directory = RunDirectory(run)
    once = once_from(options)
    once = replace(once, restart=restart or once.restart)
    if any(map(is_folder, named)):
        require_sole(named, shard)
        with shown_progress() as progress:
            found = run_evaluate_folder(request, directory, named[0], once, progress)
        return show_folder_reports(found, as_json=as_json)
    if shard is not None:
        with shown_progress() as progress:
            part = run_evaluation_shard(request, directory, named, shard, once, progress)
        return show_shard(part, as_json=as_json)
    with shown_progress() as progress:
        results = run_evaluations(request, directory, named, once, progress)
    return show_reports(results, as_json=as_json)
