"""``ptq explain``."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ptq_cli.cli.help_sections import SectionCommand, argument
from ptq_cli.cli.options.model_options import AMAX
from ptq_cli.cli.options.shared_options import GLOBALS, PLOT, RECIPES, RUN, request_from, take

if TYPE_CHECKING:
    from ptq_cli.evaluation.document.report_document import LayerEntry
    from ptq_cli.pipeline.views.calibration_view import Explanation, TensorView


@click.command(
    cls=SectionCommand,
    short_help="Show one tensor's histogram, ranges and errors.",
    epilog="""\b
Examples:
  ptq explain stem.activation/Clip
  ptq explain image --amax mse --plot image.svg
""",
)
@argument("tensor")
@take(PLOT, AMAX, RUN, RECIPES, GLOBALS)
def command(
    tensor: str,
    plot: Path | None,
    run: Path,
    as_json: bool,
    **options: Any,
) -> None:
    """Show the histogram of TENSOR, where each amax method ends its range, and the error that this causes.

    TENSOR is a name from ptq calibration show, or the name of the layer that computes the tensor. The errors
    come from rounding and clipping. They are estimated from the histogram; no model is run.
    """
    from ptq_cli.cli.terminal.output import print_json
    from ptq_cli.pipeline.setup.run_directory import RunDirectory
    from ptq_cli.pipeline.views.calibration_view import explain_tensor

    if plot is not None:
        from ptq_cli.pipeline.views.tensor_plot import require_plot

        require_plot(plot)
    request = request_from(options)
    found = explain_tensor(request, RunDirectory(run), tensor)
    if plot is not None:
        from ptq_cli.pipeline.views.tensor_plot import write_plot

        write_plot(found.tensor, plot)
    if as_json:
        print_json(replace(found, plot=plot))
    else:
        _print(found, plot)


def _print(found: "Explanation", plot: Path | None) -> None:
    from ptq_cli.cli.shown.channel_tables import listed, method_table, notes
    from ptq_cli.cli.shown.drawings import draw_histogram
    from ptq_cli.cli.terminal.output import CHOSEN, PIPE_WIDTH, print_table, say, tell
    from ptq_cli.cli.terminal.phrases import counted, shown_path
    from ptq_cli.pipeline.views.calibration_view import shown_name
    from ptq_cli.report.text.numbers import format_range, format_share

    tensor, statistics = found.tensor, found.tensor.statistics
    kind = "symmetric" if tensor.site.symmetric else "with a zero point"
    say(shown_name(str(found.spec)))
    say(f"becomes:    {tensor.site.format.name} {kind}")
    whole = "its nested graph" if found.nested else "the model"
    say(f"comes from: {_node(found.producer) if found.producer is not None else f'an input of {whole}'}")
    readers = [_node(reader) for reader in found.readers] + [f"an output of {whole}"] * found.is_output
    say(f"read by:    {', '.join(readers)}")
    for node in filter(None, (found.producer, *found.readers)):
        if node.reason:
            say(f"in float:   {shown_name(node.name)}: {shown_name(node.reason)}")
    if found.sharing:
        say(f"shared by:  {', '.join(map(shown_name, found.sharing))}")
    zeros = "" if tensor.zeros is None else f", {format_share(tensor.zeros, statistics.count)} zeros"
    samples = counted(found.calibration.samples, "sample")
    values = format_range(statistics.low, statistics.high)
    say(f"values:     {statistics.count:,} in {samples}, {values}{zeros}\n")
    for line in draw_histogram(tensor, shutil.get_terminal_size((PIPE_WIDTH, 0)).columns):
        say(line)
    columns = tuple(range(8))
    if not statistics.unseen:
        table = method_table(tensor)
        left_out = print_table(table, right=columns[1:], whole=columns, optional=(3, *columns[5:]))
        say(f"{CHOSEN} marks what ptq export uses; mse and SQNR are estimated from the histogram")
        if left_out:
            tell(f"the terminal is too narrow for: {listed(left_out)}; --json has them")
    _print_channels(tensor, found.calibration.target)
    for note in notes(found.calibration, (tensor,)):
        say(note)
    if plot is not None:
        say(f"wrote {shown_path(plot)}")


def _print_channels(tensor: "TensorView", target: str) -> None:
    from ptq_cli.cli.shown.channel_tables import channel_lines, channel_table
    from ptq_cli.cli.terminal.output import PIPE_WIDTH, print_table, say

    if tensor.channels is None:
        return
    say("")
    width = shutil.get_terminal_size((PIPE_WIDTH, 0)).columns
    for line in channel_lines(tensor.channels, target, width):
        say(line)
    columns = tuple(range(6))
    table = channel_table(tensor, tensor.channels)
    print_table(table, right=columns, whole=columns, optional=(3, 4, 5))


def _node(node: "LayerEntry") -> str:
    from ptq_cli.pipeline.views.calibration_view import shown_name

    return f"{shown_name(node.name)} ({shown_name(node.op)}, {'integer' if node.integer else 'float'})"
