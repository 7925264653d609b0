"""``ptq export``."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ptq_cli.terminal.options.help_sections import OWN, SectionCommand, option
from ptq_cli.terminal.options.model_options import (
    AMAX,
    ARCH,
    MODEL_ARGUMENT,
    QUANTIZATION,
    data_option,
    target_option,
)
from ptq_cli.terminal.options.shared_options import (
    GLOBALS,
    OUTPUT,
    PATH,
    RECIPES,
    RUN,
    once_from,
    refuse_options,
    request_from,
    take,
)

if TYPE_CHECKING:
    from ptq_cli.setup.resolve import Request

OF_FLOAT = ("model", "data", "arch")
OF_QUANTIZED = ("reset", "context", "target", "amax", "weight_bits", "recover", "exclude", "prefer", "run")


@click.command(
    cls=SectionCommand,
    once=("restart",),
    short_help="Write the quantized ONNX model.",
    epilog="""\b
Examples:
  ptq export --onnx
  ptq export --onnx --set amax.percentile=99.99 --output model_int8.onnx
  ptq export --prefer latency --set export.serve_batch=8 --set runtime.threads=1
  ptq export --target tensorrt --output model.trt.onnx
  ptq export --set recovery.rungs=round
  ptq export --reset
  ptq export --float model.pt -o float.onnx
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
    help="Also compile the model for Qualcomm's HTP, and write the result there (target qnn).",
)
@option(
    OWN,
    "--float",
    "is_float",
    is_flag=True,
    help="Write MODEL as the float ONNX model that ptq calibrate measures, without a calibration.",
)
@data_option("With --float: data to compare the models on.  [default: random inputs]")
@target_option("the calibration's target")
@take(MODEL_ARGUMENT, ARCH, AMAX, QUANTIZATION, RUN, RECIPES, GLOBALS)
def command(
    model: Path | None,
    is_float: bool,
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

    With --float, MODEL is written as the float ONNX model that ptq calibrate measures: constants and
    BatchNormalization are folded, patterns of several operators are replaced by one operator, and an old
    opset is converted. What was changed is shown, and the result is compared with MODEL; if they differ,
    nothing is written. If MODEL is a folder, each float ONNX file in it is prepared, and written to another
    folder by its name.
    """
    from ptq_cli.pipeline.run_export import run_export
    from ptq_cli.setup.run_directory import RunDirectory
    from ptq_cli.shown.export_lines import print_export
    from ptq_cli.terminal.output import print_json, tell, warn_of_result
    from ptq_cli.terminal.phrases import next_step
    from ptq_cli.terminal.progress_bar import shown_progress

    restart = once_from(options).restart
    if is_float:
        refuse_options(OF_QUANTIZED, "is not for --float", "leave it out")
        _export_float(request_from(options, model), output, as_json=as_json)
        return
    refuse_options(OF_FLOAT, "is for --float alone", "the run directory has the model that was calibrated")
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
    if as_json:
        print_json(result)
        return
    print_export(result)
    warn_of_result(result.warnings)
    tell(next_step("ptq evaluate", RunDirectory(run), result.output))


def _export_float(request: "Request", output: Path | None, *, as_json: bool) -> None:
    from ptq_cli.core.errors import UsageError
    from ptq_cli.folders.evaluate_folder import PreparedFolder, run_prepare_folder
    from ptq_cli.folders.model_folder import names_folder
    from ptq_cli.pipeline.run_prepare import run_prepare
    from ptq_cli.shown.export_lines import print_prepared
    from ptq_cli.terminal.output import print_json

    if output is None:
        raise UsageError("--float needs an output", hint="ptq export --float MODEL -o float.onnx")
    if not names_folder(request):
        result = run_prepare(request, output)
        (print_json if as_json else print_prepared)(result)
        return
    results = run_prepare_folder(request, output)
    if as_json:
        print_json(PreparedFolder(tuple(results)))
        return
    for item in results:
        print_prepared(item)
