"""A quantizer's staircase and its gradient as PNG or SVG."""

from pathlib import Path
from typing import TYPE_CHECKING

from ptq_cli.pipeline.plot import COLOURS, figure_in
from ptq_cli.pipeline.staircase import Curve, Staircase

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 4001
IDENTITY_COLOUR = "#767676"
"""A grey that is seen on white and on black."""


def write_staircase(stairs: Staircase, path: Path) -> None:
    """Draw a quantizer's result, and beneath it its gradient.

    Raises:
        UsageError: as ``require_plot``.
        OutputFileError: the file cannot be written.
    """
    settings = ", ".join(f"{name}={value}" for name, value in stairs.settings.items())
    with figure_in(path) as figure:
        above, beneath = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
        figure.suptitle(f"{stairs.family.name}: {settings}", parse_math=False)
        draw_axes(above, beneath, stairs.curve)
        above.set_ylabel("result")
        beneath.set_ylabel("gradient")
        beneath.set_xlabel("x")
        above.legend()


def draw_axes(above: "Axes", beneath: "Axes", curve: Curve) -> None:
    """Draw the result with x itself behind it into one pair of axes, the gradient into another."""
    x = curve.line(POINTS)
    y, gradient = curve.at(x)
    above.plot(x, x, color=IDENTITY_COLOUR, linewidth=1, linestyle="--", label="x")
    above.plot(x, y, color=COLOURS[0], linewidth=2, label="result")
    # Not the whole of x where the result is clipped.
    low, high = float(y.min()), float(y.max())
    margin = 0.1 * (high - low or 1.0)
    above.set_ylim(low - margin, high + margin)
    least, most = min(0.0, float(gradient.min())), float(gradient.max())
    beneath.plot(x, gradient, color=COLOURS[1], linewidth=2)
    beneath.fill_between(x, gradient, color=COLOURS[1], alpha=0.2, linewidth=0)
    room = 0.1 * (most - least or 1.0)
    beneath.set_ylim(least - room, most + room)
