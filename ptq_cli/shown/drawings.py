"""Drawings made of characters: a tensor's histogram with its ranges, and a quantizer's staircase."""

import math
import textwrap
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ptq_cli.amax.choice import Choice
from ptq_cli.amax.expected_error import counts_between, signed_bins
from ptq_cli.core.words import format_count
from ptq_cli.report.text.tables import format_number, format_share
from ptq_cli.terminal.output import CHOSEN

if TYPE_CHECKING:
    from ptq_cli.pipeline.views.calibration_view import TensorView
    from ptq_cli.pipeline.views.staircase import Staircase


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


# A tensor's histogram drawn with characters: bars of counts, and below them each method's range.


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


# A quantizer's staircase and its gradient, drawn with characters.


Floats = npt.NDArray[np.float64]
STAIRCASE_ROWS, MOST_ROWS = 13, 23
"""Least and most rows, so that both drawings and their text fit on a terminal with 40 rows."""
GRADIENT_ROWS = 5
LINE, RISE, IDENTITY = "─", "│", "·"
UP, DOWN = ("┌", "┘"), ("┐", "└")
"""The upper and the lower corner of a rise and of a fall."""


def draw_staircase(stairs: "Staircase", width: int) -> list[str]:
    """Return the lines of both drawings, ``width`` columns wide: the result, and below it the gradient.

    A few equally spaced levels get one row each. Dots are the values before quantization.
    """
    columns = max(width - MARGIN - 1, NARROWEST)
    x = stairs.curve.line(columns)
    y, gradient = stairs.curve.at(x)
    low, high = float(stairs.levels[0]), float(stairs.levels[-1])
    labels = axis_labels(stairs.curve.low, stairs.curve.high, columns)
    return [
        *_text(f"result (dots: x): {stairs.family.formula}", width),
        *_draw(y, low, high, _rows(len(stairs.levels)), columns, behind=x),
        " " * MARGIN + labels,
        *_text(f"gradient: {stairs.family.gradient}", width),
        *_draw(gradient, min(0.0, float(gradient.min())), float(gradient.max()), GRADIENT_ROWS, columns),
        " " * MARGIN + labels,
    ]


def _text(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(width - 1, NARROWEST), subsequent_indent="  ")


def _rows(levels: int) -> int:
    """Return how many rows the result takes, so that equally spaced levels fall on rows.

    Example:
        >>> [_rows(levels) for levels in (1, 2, 3, 7, 8, 15, 16, 23, 24, 65536)]
        [13, 13, 13, 13, 15, 15, 16, 23, 23, 23]
    """
    gaps = max(levels - 1, 1)
    return min(gaps * -(-(STAIRCASE_ROWS - 1) // gaps) + 1, MOST_ROWS)


def _draw(
    values: Floats, low: float, high: float, rows: int, columns: int, behind: Floats | None = None
) -> list[str]:
    places = _places(values, low, high, rows)
    canvas = [[" "] * columns for _ in range(rows)]
    if behind is not None:
        for column, place in enumerate(_places(behind, low, high, rows)):
            if low <= behind[column] <= high:
                canvas[place][column] = IDENTITY
    before = places[0]
    for column, place in enumerate(places):
        _join(canvas, column, before, place)
        before = place
    shown = {0: low}
    if high > low:
        shown |= {rows - 1: high, rows // 2: low + (high - low) * (rows // 2) / (rows - 1)}
    lines = []
    for row in range(rows - 1, -1, -1):
        label = format_number(shown[row]) if row in shown else ""
        lines.append(f"{label:>{LABEL}} {'┤' if row in shown else '│'}{''.join(canvas[row])}".rstrip())
    return [*lines, f"{'':>{LABEL}} └{'─' * columns}"]


def _places(values: Floats, low: float, high: float, rows: int) -> list[int]:
    shares = (values - low) / (high - low) if high > low else np.zeros_like(values)
    places: list[int] = np.rint(np.clip(shares, 0, 1) * (rows - 1)).astype(int).tolist()
    return places


def _join(canvas: list[list[str]], column: int, before: int, place: int) -> None:
    """Draw the line in a column, from the row of the column before to its own."""
    if before == place:
        canvas[place][column] = LINE
        return
    upper, lower = UP if place > before else DOWN
    for row in range(min(before, place) + 1, max(before, place)):
        canvas[row][column] = RISE
    canvas[max(before, place)][column] = upper
    canvas[min(before, place)][column] = lower
