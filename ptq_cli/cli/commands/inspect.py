"""``ptq inspect``."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ptq_cli.terminal.options.help_sections import OWN, SectionCommand, option
from ptq_cli.terminal.options.model_options import (
    AMAX,
    ARCH,
    EXCLUDE,
    MODEL_ARGUMENT,
    TARGET,
    WEIGHT_BITS,
    data_option,
)
from ptq_cli.terminal.options.shared_options import (
    GLOBALS,
    PATH,
    RECIPES,
    RUN,
    refuse_options,
    request_from,
    take,
)

if TYPE_CHECKING:
    from ptq_cli.pipeline.calibration_view import TensorView
    from ptq_cli.setup.resolve import Request
    from ptq_cli.setup.run_directory import RunDirectory

SORTS = ("clipped", "range", "name")
OF_MODEL = ("depth", "show_all", "data", "arch", "target", "weight_bits", "exclude")
OF_RUN = ("run", "tensor", "plot", "sort", "amax")


@click.command(
    cls=SectionCommand,
    short_help="Show a model's layers, or what a calibration measured.",
    epilog="""\b
Examples:
  ptq inspect model.pt
  ptq inspect ptq-run/model_int8.onnx --all
  ptq inspect model.pt --arch model.py:build --set model.input_shape.image=1,3,224,224
  ptq inspect
  ptq inspect --sort clipped --amax percentile --set amax.percentile=99.9
  ptq inspect --tensor image --amax mse --plot image.svg
""",
)
@option(
    OWN,
    "--depth",
    type=click.IntRange(min=1),
    metavar="N",
    help="Show N levels of modules, with totals for what is below.",
)
@option(OWN, "--all", "show_all", is_flag=True, help="List every layer by its full name.")
@option(
    OWN,
    "--tensor",
    metavar="NAME",
    help="Show one tensor of the calibration: a name of the list, or of the layer that computes it.",
)
@option(
    OWN,
    "--plot",
    type=PATH,
    metavar="FILE",
    help="With --tensor, also draw it as a .png or .svg file; needs the extra ptq-cli[plot].",
)
@option(
    OWN,
    "--sort",
    type=click.Choice(SORTS),
    help="Order of the calibration's tensors: most clipped first, widest range first, or by name.  "
    "[default: as the model runs them]",
)
@data_option("Data that give the shapes of the model's inputs.")
@take(MODEL_ARGUMENT, ARCH, TARGET, AMAX, WEIGHT_BITS, EXCLUDE, RUN, RECIPES, GLOBALS)
def command(
    model: Path | None,
    as_json: bool,
    depth: int | None,
    show_all: bool,
    tensor: str | None,
    plot: Path | None,
    sort: str | None,
    run: Path,
    **options: Any,
) -> None:
    """Show which layers of MODEL would be quantized, or, without MODEL, what a run's calibration measured.

    With MODEL, its layers are listed below their modules with totals for each module, and the reason why a
    layer would not be quantized; blocks that repeat are shown once. If MODEL already has QuantizeLinear and
    DequantizeLinear, its layers are shown as they are.

    Without MODEL, each tensor that was measured is shown: its range, amax by each method, and the shares of
    clipped values and zeros. Clipped values lie outside the range that the chosen method decides. They are
    counted in the histogram; ≤ marks a share whose range ends inside a bin. A narrow terminal shows fewer
    columns. With --tensor, one of them is shown: its histogram, where each amax method ends its range, and
    the error of rounding and clipping that this causes, estimated from the histogram.

    Nothing is calibrated, no model is run and nothing is written but --plot.
    """
    from ptq_cli.core.errors import MissingStageError, UsageError
    from ptq_cli.pipeline.run_inspect import run_inspect
    from ptq_cli.setup.run_directory import RunDirectory
    from ptq_cli.shown.inspection_tree import print_inspection
    from ptq_cli.terminal.output import print_json

    if model is not None:
        refuse_options(OF_RUN, "is about a run's calibration, not about MODEL", "leave MODEL out")
        result = run_inspect(request_from(options, model))
        if as_json:
            print_json(result)
        else:
            print_inspection(result, depth=depth, show_all=show_all)
        return
    directory = RunDirectory(run)
    if not directory.calibration.is_file():
        raise MissingStageError(
            f"there is no MODEL to inspect, and no calibration in '{run}'",
            hint="ptq inspect MODEL shows its layers; ptq calibrate makes a calibration",
        )
    refuse_options(OF_MODEL, "is about the layers of a model", "name the model: ptq inspect MODEL")
    if tensor is not None:
        refuse_options(("sort",), "orders a list, and --tensor shows one", "leave --sort out")
        _explain(request_from(options), directory, tensor, plot, as_json=as_json)
        return
    if plot is not None:
        raise UsageError("--plot draws one tensor", hint=f"ptq inspect --tensor NAME --plot {plot}")
    _show_calibration(request_from(options), directory, sort, as_json=as_json)


def _explain(
    request: "Request", run: "RunDirectory", tensor: str, plot: Path | None, *, as_json: bool
) -> None:
    from ptq_cli.pipeline.calibration_view import explain_tensor
    from ptq_cli.pipeline.tensor_plot import require_plot, write_plot
    from ptq_cli.shown.tensor_lines import print_explanation
    from ptq_cli.terminal.output import print_json

    if plot is not None:
        require_plot(plot)
    found = replace(explain_tensor(request, run, tensor), plot=plot)
    if plot is not None:
        write_plot(found.tensor, plot)
    (print_json if as_json else print_explanation)(found)


def _show_calibration(request: "Request", run: "RunDirectory", sort: str | None, *, as_json: bool) -> None:
    from ptq_cli.pipeline.calibration_view import view_calibration
    from ptq_cli.shown.tensor_lines import print_calibration_view
    from ptq_cli.terminal.output import print_json

    view = view_calibration(request, run)
    view = replace(view, tensors=_sorted(view.tensors, sort))
    (print_json if as_json else print_calibration_view)(view)


def _sorted(tensors: "tuple[TensorView, ...]", sort: str | None) -> "tuple[TensorView, ...]":
    if sort == "clipped":
        return tuple(sorted(tensors, key=_clipped_share, reverse=True))
    if sort == "range":
        return tuple(
            sorted(tensors, key=lambda item: item.statistics.high - item.statistics.low, reverse=True)
        )
    if sort == "name":
        return tuple(sorted(tensors, key=lambda item: item.name))
    return tensors


def _clipped_share(tensor: "TensorView") -> float:
    # Unknown values come last.
    return tensor.clipped[1] / max(tensor.statistics.count, 1) if tensor.clipped is not None else -1.0
