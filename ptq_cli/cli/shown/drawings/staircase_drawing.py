"""A quantizer's staircase and its gradient, drawn with characters."""

import textwrap
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ptq_cli.cli.shown.drawings.drawing_frame import LABEL, MARGIN, NARROWEST, axis_labels
from ptq_cli.report.text.numbers import format_number

if TYPE_CHECKING:
    from ptq_cli.pipeline.views.staircase import Staircase

Floats = npt.NDArray[np.float64]
ROWS, MOST_ROWS = 13, 23
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
    return min(gaps * -(-(ROWS - 1) // gaps) + 1, MOST_ROWS)


def _draw(
    values: Floats, low: float, high: float, rows: int, columns: int, behind: Floats | None = None
) -> list[str]:
    """Draw a line of values, one per column, with labels at its ends and halfway between."""
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
    """Return the row of each value, counted from the lowest."""
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
