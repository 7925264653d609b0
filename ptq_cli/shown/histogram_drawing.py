"""A tensor's histogram in characters: bars of counts, and below them the range of each amax method."""

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ptq_cli.amax.choice import Choice
from ptq_cli.amax.expected_error import counts_between, signed_bins
from ptq_cli.core.words import format_count
from ptq_cli.report.text.numbers import format_number, format_share
from ptq_cli.terminal.output import CHOSEN

if TYPE_CHECKING:
    from ptq_cli.pipeline.views.calibration_view import TensorView


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


BARS = " ▁▂▃▄▅▆▇█"
PARTS = len(BARS) - 1
ROWS = 12
Counts = npt.NDArray[np.float64]


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


def needs_log(counts: Counts) -> bool:
    """Return whether a linear scale would make a quarter of the columns that hold values look empty.

    Example:
        >>> needs_log(np.array([5.0, 9.0, 7.0])), needs_log(np.array([1.0, 2.0, 1e6, 3.0]))
        (False, True)
    """
    held = counts[counts > 0]
    unseen = np.count_nonzero(held < counts.max() / (2 * PARTS * ROWS))
    return bool(unseen * 4 >= held.size)


def _bars(counts: Counts, *, is_log: bool) -> list[str]:
    top = float(counts.max())
    shares = np.log(np.maximum(counts, 1.0)) / max(math.log(max(top, 1.0)), 1e-9) if is_log else counts / top
    # A column that holds a value is visible.
    heights = np.where(counts > 0, np.maximum(np.rint(shares * ROWS * PARTS), 1), 0).astype(int)
    lines = []
    for row in range(ROWS, 0, -1):
        filled = np.clip(heights - (row - 1) * PARTS, 0, PARTS)
        bars = "".join(BARS[part] for part in filled)
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
