"""What ``ptq inspect`` shows of a run: its calibration's tensors, or one of them."""

import shutil
from typing import TYPE_CHECKING

from ptq_cli.pipeline.views.calibration_view import shown_name
from ptq_cli.report.text.numbers import format_range, format_share
from ptq_cli.shown.channel_tables import (
    channel_lines,
    channel_table,
    channels_table,
    listed,
    method_table,
    notes,
    tensor_table,
)
from ptq_cli.shown.histogram_drawing import draw_histogram
from ptq_cli.terminal.output import CHOSEN, PIPE_WIDTH, print_table, say, tell
from ptq_cli.terminal.phrases import counted, shown_path

if TYPE_CHECKING:
    from ptq_cli.evaluation.document.report_document import LayerEntry
    from ptq_cli.pipeline.views.calibration_view import CalibrationView, Explanation, TensorView


def print_calibration_view(view: "CalibrationView") -> None:
    """Print each measured tensor: range, amax by method, clipped share and zeros."""
    tensors = view.tensors
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
    _print_largest_channels(tensors)
    for note in notes(view, tensors):
        say(note)


def _print_largest_channels(tensors: "tuple[TensorView, ...]") -> None:
    table = channels_table(tensors)
    if not table.rows:
        return
    columns = tuple(range(1, len(table.header)))
    left_out = print_table(table, right=columns, whole=columns, optional=(5, 1, 4))
    meaning = "largest magnitude of each channel; imbalance: largest divided by median"
    say(f"{meaning}; ptq inspect --tensor shows each")
    if left_out:
        tell(f"the terminal is too narrow for: {listed(left_out)}; --json has them")


def print_explanation(found: "Explanation") -> None:
    """Print one tensor: where it comes from, its histogram, and each method's range and error."""
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
    _print_channels_of(tensor, found.calibration.target)
    for note in notes(found.calibration, (tensor,)):
        say(note)
    if found.plot is not None:
        say(f"wrote {shown_path(found.plot)}")


def _print_channels_of(tensor: "TensorView", target: str) -> None:
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
    return f"{shown_name(node.name)} ({shown_name(node.op)}, {'integer' if node.integer else 'float'})"
