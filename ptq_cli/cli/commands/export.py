"""``ptq export``."""

from pathlib import Path
from typing import Any

import click

from ptq_cli.terminal.options import completion
from ptq_cli.terminal.options.help_sections import OWN, SectionCommand, option
from ptq_cli.terminal.options.model_options import AMAX, INPUT_SHAPE, QUANTIZATION, THREADS, target_option
from ptq_cli.terminal.options.shared_options import (
    GLOBALS,
    OUTPUT,
    PATH,
    RECIPES,
    RUN,
    once_from,
    request_from,
    take,
)


@click.command(
    cls=SectionCommand,
    once=("restart",),
    short_help="Write the quantized ONNX model.",
    epilog="""\b
Examples:
  ptq export --onnx
  ptq export --onnx --set amax.percentile=99.99 --output model.int8.onnx
  ptq export --prefer latency --set export.serve_batch=8 --threads 1
  ptq export --target tensorrt --output model.trt.onnx
  ptq export --recover round
  ptq export --reset
""",
)
@option(
    OWN,
    "--onnx",
    is_flag=True,
    expose_value=False,
    help="Write an ONNX file; the only format, and the default.",
)
@take(OUTPUT)
@option(
    OWN,
    "--reset",
    is_flag=True,
    help="Leave out the settings of earlier exports that recipe.toml in the run directory holds.",
)
@option(
    OWN,
    "--context",
    type=PATH,
    metavar="FILE",
    shell_complete=completion.complete_files,
    help="Also compile the model for Qualcomm's HTP, and write the result there (target qnn).",
)
@target_option("the calibration's target")
@take(INPUT_SHAPE, AMAX, QUANTIZATION, THREADS, RUN, RECIPES, GLOBALS)
def command(
    output: Path | None,
    reset: bool,
    context: Path | None,
    run: Path,
    as_json: bool,
    **options: Any,
) -> None:
    """Decide scales from the saved statistics, and write the quantized model.

    The options of ptq calibrate need not be repeated; only --recover reads its data again. It is an error if
    the model or a setting that the statistics depend on has changed since, or if another target quantizes a
    tensor that was not measured.

    Without --output, the model and recipe.toml are written to the run directory, and later commands use these
    settings. With --output, only that file is written, and nothing changes for later commands, which find it
    if the run has no other model. --reset goes back to the preset's ranges, quantizers and overrides, and to
    the calibration's target.
    """
    from ptq_cli.pipeline.run_export import run_export
    from ptq_cli.setup.run_directory import RunDirectory
    from ptq_cli.shown.export_lines import print_export, warn_of_outliers
    from ptq_cli.terminal.output import print_json, tell, warn_of_result
    from ptq_cli.terminal.phrases import next_step
    from ptq_cli.terminal.progress_bar import shown_progress

    restart = once_from(options).restart
    request = request_from(options)
    with shown_progress() as progress:
        result = run_export(
            request,
            RunDirectory(run),
            output,
            reset=reset,
            restart=restart,
            context=context,
            progress=progress,
        )
    warn_of_outliers(result.outliers, result.weight_amax)
    if as_json:
        print_json(result)
        return
    print_export(result)
    warn_of_result(result.warnings)
    tell(next_step("ptq evaluate", RunDirectory(run), result.output))
