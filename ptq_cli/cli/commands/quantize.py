"""``ptq quantize``."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ptq_cli.terminal.options.help_sections import OWN, RUNNING, SectionCommand, option
from ptq_cli.terminal.options.model_options import (
    AMAX,
    ARCH,
    CALIBRATION,
    EVALUATION_DATA,
    LIMITS,
    METHOD,
    METRIC,
    MODEL_ARGUMENT,
    QUANTIZATION,
    TARGET,
)
from ptq_cli.terminal.options.shared_options import GLOBALS, PATH, RECIPES, RUN, once_from, request_from, take

if TYPE_CHECKING:
    from ptq_cli.recipe.assignments import Once
    from ptq_cli.setup.resolve import Request


@click.command(
    cls=SectionCommand,
    once=("restart", "evaluate"),
    short_help="Calibrate, export and evaluate in one command.",
    epilog="""\b
Examples:
  ptq quantize model.pt --arch model.py:build --data calib.npz -o out.onnx
  ptq quantize model.pt --max-drop top1=0.01
  ptq quantize model.pt --weight-bits 4 --set recovery.rungs=round
  ptq quantize exported/ --preset w4_block32 -o exported/

Exits with status 3 if a limit fails.
""",
)
@option(
    OWN,
    "--output",
    "-o",
    type=PATH,
    metavar="PATH",
    help="Output file, or folder if MODEL is one.  [default: RUN/model_int8.onnx, or "
    "RUN/model_q4.onnx for 4-bit weights; RUN/export]",
)
@option(
    RUNNING,
    "--format",
    "form",
    type=click.Choice(["hub"]),
    help="Write a folder as on the hub: onnx/model_quantized.onnx, and how it was quantized.",
)
@take(MODEL_ARGUMENT, CALIBRATION, ARCH, TARGET, METHOD, AMAX, QUANTIZATION)
@take(EVALUATION_DATA, METRIC, LIMITS)
@take(RUN, RECIPES, GLOBALS)
def command(
    model: Path | None,
    output: Path | None,
    form: str | None,
    run: Path,
    as_json: bool,
    **options: Any,
) -> int:
    """Calibrate MODEL, export it and, if asked to, evaluate it.

    It is evaluated if evaluation data, a metric or a limit is given, or if a recipe sets a limit. Evaluation
    data in a recipe alone are for ptq evaluate. --set run.evaluate=true or false decides otherwise.

    Does the same as ptq calibrate, export and evaluate, but writes all files at the end: if a step fails or
    is interrupted, the files of earlier runs stay as they were.

    If MODEL is a folder, such as an export of Optimum, each ONNX file in it is quantized: model.onnx becomes
    model_q4.onnx, and configurations and tokenizers are copied to the output. --data and --eval-data are for
    all files, or folders with a file of each model's name. Of a folder with config.json and model.safetensors
    alone, transformers builds the encoder (pip install 'ptq-cli[hub]').
    """
    from ptq_cli.folders.model_folder import names_folder
    from ptq_cli.pipeline.run_quantize import run_quantize
    from ptq_cli.setup.run_directory import RunDirectory
    from ptq_cli.shown.export_lines import show_quantization
    from ptq_cli.terminal.progress_bar import shown_progress

    once = once_from(options)
    request = request_from(options, model)
    if form is not None or names_folder(request):
        return _quantize_folder(request, run, output, once, for_hub=form is not None, as_json=as_json)
    with shown_progress() as progress:
        result = run_quantize(request, RunDirectory(run), output, once, progress)
    return show_quantization(result, as_json=as_json)


def _quantize_folder(
    request: "Request", run: Path, output: Path | None, once: "Once", *, for_hub: bool, as_json: bool
) -> int:
    from ptq_cli.folders.folder_lines import show_folder
    from ptq_cli.folders.quantize_folder import run_quantize_folder
    from ptq_cli.setup.run_directory import RunDirectory
    from ptq_cli.terminal.progress_bar import shown_progress

    with shown_progress() as progress:
        result = run_quantize_folder(request, RunDirectory(run), output, once, progress, for_hub=for_hub)
    return show_folder(result, as_json=as_json)
