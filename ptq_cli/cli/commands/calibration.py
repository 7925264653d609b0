"""``ptq calibration``: what was measured."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ptq_cli.terminal.options.help_sections import OWN, SectionGroup, option
from ptq_cli.terminal.options.model_options import AMAX
from ptq_cli.terminal.options.shared_options import GLOBALS, RECIPES, RUN, TALK, request_from, take

if TYPE_CHECKING:
    from ptq_cli.pipeline.views.calibration_view import CalibrationView, TensorView

SORTS = ("clipped", "range", "name")


@click.group(
    cls=SectionGroup,
    short_help="Show what a calibration measured.",
    epilog="""\b
Examples:
  ptq calibration show
  ptq calibration show --sort clipped --amax mse
""",
)
@take(TALK)
def command() -> None:
    """Show saved statistics. No model is run and nothing is written."""


@command.command(
    short_help="Show the range, amax and clipped share of each tensor.",
    epilog="""\b
Examples:
  ptq calibration show
  ptq calibration show --sort clipped --amax percentile --set amax.percentile=99.9
  ptq calibration show --run runs/resnet --json
""",
)
@option(
    OWN,
    "--sort",
    type=click.Choice(SORTS),
    help="Order of the tensors: most clipped first, widest range first, or by name.  "
    "[default: as the model runs them]",
)
@take(AMAX, RUN, RECIPES, GLOBALS)
def show(sort: str | None, run: Path, as_json: bool, **options: Any) -> None:
    """Show each measured tensor: its range, amax by each method, and the shares of clipped values and zeros.

    Clipped values lie outside the range that the chosen method decides for the tensor. They are counted in
    the histogram; ≤ marks a share whose range ends inside a bin. A narrow terminal shows fewer columns.
    """
    from ptq_cli.pipeline.views.calibration_view import view_calibration
    from ptq_cli.setup.run_directory import RunDirectory
    from ptq_cli.terminal.output import print_json

    request = request_from(options)
    view = view_calibration(request, RunDirectory(run))
    view = replace(view, tensors=_sorted(view.tensors, sort))
    if as_json:
        print_json(view)
    else:
        _print(view, view.tensors)


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


def _print(view: "CalibrationView", tensors: "tuple[TensorView, ...]") -> None:
    from ptq_cli.shown.channel_tables import listed, notes, tensor_table
    from ptq_cli.terminal.output import CHOSEN, print_table, say, tell
    from ptq_cli.terminal.phrases import counted

    methods = tuple(method for method in view.methods if method not in view.missing)
    samples = counted(view.samples, "sample")
    measured = f"{counted(len(tensors), 'tensor')} for {view.target}, measured on {samples}"
    say(f"{measured}, statistics: {view.collector}")
    columns = 2 + len(methods)
    left_out = print_table(
        tensor_table(tensors, methods),
        right=tuple(range(1, columns + 2)),
        whole=tuple(range(1, columns + 2)),
        # The zeros are the first to go, then the range: the largest magnitude is max's amax.
        optional=(columns + 1, columns),
    )
    say(f"amax by method; {CHOSEN} marks what ptq export uses")
    say("clipped and zeros are shares of all values")
    if left_out:
        tell(f"the terminal is too narrow for: {listed(left_out)}; --json has them")
    _print_channels(tensors)
    for note in notes(view, tensors):
        say(note)


def _print_channels(tensors: "tuple[TensorView, ...]") -> None:
    from ptq_cli.shown.channel_tables import channels_table, listed
    from ptq_cli.terminal.output import print_table, say, tell

    table = channels_table(tensors)
    if not table.rows:
        return
    columns = tuple(range(1, len(table.header)))
    left_out = print_table(table, right=columns, whole=columns, optional=(5, 1, 4))
    say("largest magnitude of each channel; imbalance: largest divided by median; ptq explain shows each")
    if left_out:
        tell(f"the terminal is too narrow for: {listed(left_out)}; --json has them")
