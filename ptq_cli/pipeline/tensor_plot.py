"""A tensor's histogram as PNG or SVG, by matplotlib, an optional dependency; and what all plots share."""

import importlib.util
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ptq_cli.amax.choice import counts_between, signed_bins
from ptq_cli.core.errors import UsageError
from ptq_cli.core.files import atomic_write
from ptq_cli.pipeline.calibration_view import TensorView, shown_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_SUFFIXES = (".png", ".svg")
_COLUMNS = 256
INCHES = (9.0, 5.0)
DOTS_PER_INCH = 150
STYLE: Any = {"svg.hashsalt": "ptq", "font.size": 10.0}  # The same numbers, the same bytes
# Wong 2011, "Color blindness", Nature Methods 8: told apart with any color vision; order tells them too.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def require_plot(path: Path) -> None:
    """Raise if a plot cannot be written there, before any work.

    Example:
        >>> require_plot(Path("x.pdf"))
        Traceback (most recent call last):
        ...
        ptq_cli.core.errors.UsageError: PTQ-USAGE-001: expected a .png or .svg file for the plot, got 'x.pdf'
        hint: for example: --plot tensor.svg
    """
    if path.suffix.lower() not in _SUFFIXES:
        raise UsageError(
            f"expected a .png or .svg file for the plot, got '{path}'", hint="for example: --plot tensor.svg"
        )
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(
            "--plot needs matplotlib, which is not installed",
            hint="pip install 'ptq-cli[plot]'; without --plot, the drawing is on the terminal",
        )


def write_plot(tensor: TensorView, path: Path) -> None:
    """Draw a tensor's histogram and each method's range.

    Where only ranges were kept, or all values are 0, only the ranges are drawn.
    """
    with figure_in(path) as figure:
        _draw(figure, tensor)


@contextmanager
def figure_in(path: Path) -> "Iterator[Figure]":
    """Give an empty figure, and write what was drawn into the file."""
    require_plot(path)
    import matplotlib as mpl
    from matplotlib.figure import Figure

    kind = path.suffix.lower().removeprefix(".")
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        # The font may lack the script of a name: the file shows boxes, and nobody needs a warning.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=INCHES, dpi=DOTS_PER_INCH, layout="constrained")
        yield figure
        metadata: dict[str, Any] = {"Date": None} if kind == "svg" else {}
        with atomic_write(path) as partial:
            figure.savefig(partial, format=kind, metadata=metadata)


def _draw(figure: "Figure", tensor: TensorView) -> None:
    lines = max(len(tensor.methods), 1)
    above, beneath = figure.subplots(2, 1, sharex=True, height_ratios=[12, 1.5 * lines])
    # A name is shown as it is: no mathematics between dollars.
    figure.suptitle(f"{shown_name(tensor.name)}: {tensor.site.format.name}", parse_math=False)
    _draw_counts(above, tensor)
    for row, view in enumerate(tensor.methods.values()):
        color = COLORS[row % len(COLORS)]
        low, high = view.choice.low, view.choice.high
        beneath.plot([low, high], [-row, -row], color=color, marker="|", markersize=14, linewidth=2)
        for end in (low, high):
            above.axvline(end, color=color, linewidth=1, linestyle="--")
        if view.error is not None:
            text = f"{view.error.sqnr_db:.2f} dB"
            beneath.annotate(text, (1.01, -row), xycoords=("axes fraction", "data"), va="center")
    names = [f"{name} *" if name == tensor.chosen else name for name in tensor.methods]
    beneath.set_yticks([-row for row in range(len(names))], names)
    beneath.set_ylim(0.5 - lines, 0.5)
    beneath.set_xlabel(
        "value (* marks what ptq export uses; on the right, the SQNR estimated from the histogram)"
    )


def _draw_counts(axes: "Axes", tensor: TensorView) -> None:
    statistics, histogram = tensor.statistics, tensor.statistics.histogram
    if histogram is None or not histogram.counts.size:
        axes.text(0.5, 0.5, "no histogram", transform=axes.transAxes, ha="center")
        return
    edges = np.linspace(min(statistics.low, 0.0), max(statistics.high, 0.0), _COLUMNS + 1)
    counts = counts_between(signed_bins(statistics, histogram), edges)
    axes.stairs(counts, edges, fill=True, color="#999999")
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.5)
    zeros = f", without {statistics.zeros:,} zeros" if statistics.zeros else ""
    axes.set_ylabel("values, log scale")
    axes.set_title(f"{statistics.count:,} values{zeros}", fontsize="medium")
