"""What ``ptq inspect`` shows of a run: its calibration's tensors, or one of them with its histogram."""

import math
import shutil
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ptq_cli.amax.choice import Choice, counts_between, signed_bins
from ptq_cli.core.words import format_count
from ptq_cli.pipeline.calibration_view import shown_name
from ptq_cli.report.text.numbers import format_number, format_range, format_share
from ptq_cli.shown.channel_tables import (
    channel_lines,
    channel_table,
    channels_table,
    listed,
    method_table,
    notes,
    tensor_table,
)
from ptq_cli.terminal.output import CHOSEN, PIPE_WIDTH, print_table, say, tell
from ptq_cli.terminal.phrases import counted, shown_path

if TYPE_CHECKING:
    from ptq_cli.evaluation.document.report_document import LayerEntry
    from ptq_cli.pipeline.calibration_view import CalibrationView, Explanation, TensorView


MARGIN = 14
NARROWEST = 16
LABEL = MARGIN - 2


def axis_labels(low: float, high: float, columns: int) -> str:
    """Write both ends of the axis, and 0 if there is room for it between them.

    Example:
        >>> axis_labels(-1.0, 3.0, 20)
        '-1   0             3'
        >>> axis_labels(0.0, 3.0, 20)
        '0                  3'
    """
    left, right = format_number(low), format_number(high)
    line = left.ljust(columns - len(right)) + right
    zero = round(-low / (high - low) * (columns - 1))
    if len(left) < zero < columns - len(right) - 1 and line[zero - 1 : zero + 2].isspace():
        line = line[:zero] + "0" + line[zero + 1 :]
    return line


_BARS = " ▁▂▃▄▅▆▇█"
_PARTS = len(_BARS) - 1
ROWS = 12
_Counts = npt.NDArray[np.float64]


def draw_histogram(tensor: "TensorView", width: int) -> list[str]:
    """Return the lines of a drawing that is ``width`` columns wide, or a line that says why there is none.

    The counts have a log scale, and the drawing says so, if on a linear scale a quarter of the columns that
    hold values would look empty. Zeros are not drawn, because after a ReLU they would be the only bar. The
    drawing says their share.
    """
    statistics, histogram = tensor.statistics, tensor.statistics.histogram
    if histogram is None:
        return ["no histogram: this calibration kept only ranges"]
    if statistics.unseen:
        return ["no histogram: there were no values"]
    if not histogram.counts.size:
        return [f"no histogram: {'no value is finite' if statistics.rangeless else 'all values are 0'}"]
    low, high = min(statistics.low, 0.0), max(statistics.high, 0.0)
    columns = max(width - MARGIN - 1, NARROWEST)
    edges = np.linspace(low, high, columns + 1)
    counts = counts_between(signed_bins(statistics, histogram), edges)
    is_log = needs_log(counts)
    scale = "log scale" if is_log else "linear scale"
    zeros = (
        f"; zeros ({format_share(statistics.zeros, statistics.count)}) are not drawn"
        if statistics.zeros
        else ""
    )
    return [
        f"count of values, {scale}{zeros}",
        *_bars(counts, is_log=is_log),
        f"{'1' if is_log else '0':>{LABEL}} └{'─' * columns}",
        " " * MARGIN + axis_labels(low, high, columns),
        *(
            f"{_label(tensor, name):>{LABEL}}  {_span(view.choice, low, high, columns)}"
            for name, view in tensor.methods.items()
        ),
    ]


def needs_log(counts: _Counts) -> bool:
    """Return whether a linear scale would make a quarter of the columns that hold values look empty.

    Example:
        >>> needs_log(np.array([5.0, 9.0, 7.0])), needs_log(np.array([1.0, 2.0, 1e6, 3.0]))
        (False, True)
    """
    held = counts[counts > 0]
    unseen = np.count_nonzero(held < counts.max() / (2 * _PARTS * ROWS))
    return bool(unseen * 4 >= held.size)


def _bars(counts: _Counts, *, is_log: bool) -> list[str]:
    top = float(counts.max())
    shares = np.log(np.maximum(counts, 1.0)) / max(math.log(max(top, 1.0)), 1e-9) if is_log else counts / top
    # A column that holds a value is visible.
    heights = np.where(counts > 0, np.maximum(np.rint(shares * ROWS * _PARTS), 1), 0).astype(int)
    lines = []
    for row in range(ROWS, 0, -1):
        filled = np.clip(heights - (row - 1) * _PARTS, 0, _PARTS)
        bars = "".join(_BARS[part] for part in filled)
        share = row / ROWS
        value = top**share if is_log else top * share
        label = format_count(value) if row in (ROWS, ROWS * 2 // 3, ROWS // 3) else ""
        lines.append(f"{label:>{LABEL}} │{bars}".rstrip())
    return lines


def _span(choice: Choice, low: float, high: float, columns: int) -> str:
    """Draw a range as ``├──┤``; an end beyond the drawing is an arrow."""
    first, last = (round((end - low) / (high - low) * (columns - 1)) for end in (choice.low, choice.high))
    left = "◄" if first < 0 else "├"
    right = "►" if last > columns - 1 else "┤"
    first, last = max(first, 0), min(last, columns - 1)
    if first >= last:
        return " " * first + "│"
    return " " * first + left + "─" * (last - first - 1) + right


def _label(tensor: "TensorView", method: str) -> str:
    return f"{method} {CHOSEN}" if method == tensor.chosen else method


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
