"""A quantizer's result over a range of values, and its gradient below, drawn into two pairs of axes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from ptq_cli.pipeline.tensor_plot import COLORS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Quantizer = Callable[[torch.Tensor], torch.Tensor]
Floats = npt.NDArray[np.float64]
BEYOND = 0.25  # Shown on both sides of the levels, relative to them: where values are clipped
POINTS = 4001
FLAT = 1e-3  # How far a line may be from what is drawn, relative to its height: less than its own width
# A gray that is seen on white and on black.
IDENTITY_COLOR = "#767676"


@dataclass(frozen=True, eq=False)
class Curve:
    """A quantizer over a range.

    Attributes:
        quantizer: from a tensor to the fake-quantized one.
        low: where a drawing begins.
        high: where it ends.
    """

    quantizer: Quantizer
    low: float
    high: float

    def at(self, x: Floats) -> tuple[Floats, Floats]:
        """Return the results, and the gradients for an upstream gradient of 1.

        Shapes:
            x: any; both have the same.

        Example:
            >>> y, gradient = Curve(torch.abs, -2.0, 2.0).at(np.array([0.5, -1.5]))
            >>> y.tolist(), gradient.tolist()
            ([0.5, 1.5], [1.0, -1.0])
        """
        leaf = torch.tensor(x, dtype=torch.float32, requires_grad=True)
        y = self.quantizer(leaf)
        (gradient,) = torch.autograd.grad(y.sum(), leaf)
        return y.detach().double().numpy(), gradient.double().numpy()

    def line(self, count: int) -> Floats:
        """Return the middles of ``count`` equal parts of the range."""
        edges = np.linspace(self.low, self.high, count + 1)
        middles: Floats = (edges[1:] + edges[:-1]) / 2
        return middles


def beyond(quantizer: Quantizer, low: float, high: float) -> Curve:
    """Return a curve that goes on beyond its outermost levels."""
    margin = BEYOND * (high - low)
    return Curve(quantizer, low - margin, high + margin)


def draw_axes(above: "Axes", beneath: "Axes", curve: Curve) -> None:
    """Draw the result with x itself behind it into one pair of axes, the gradient into another."""
    x = curve.line(POINTS)
    y, gradient = curve.at(x)
    above.plot(x[[0, -1]], x[[0, -1]], color=IDENTITY_COLOR, linewidth=1, linestyle="--", label="x")
    above.plot(*corners(x, y), color=COLORS[0], linewidth=2, label="result")
    # Not the whole of x where the result is clipped.
    low, high = float(y.min()), float(y.max())
    margin = 0.1 * (high - low or 1.0)
    above.set_ylim(low - margin, high + margin)
    least, most = min(0.0, float(gradient.min())), float(gradient.max())
    line = corners(x, gradient)
    beneath.plot(*line, color=COLORS[1], linewidth=2)
    beneath.fill_between(*line, color=COLORS[1], alpha=0.2, linewidth=0)
    room = 0.1 * (most - least or 1.0)
    beneath.set_ylim(least - room, most + room)


def corners(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return the points of a line that it cannot do without: none of the others is far from what they draw.

    Shapes:
        x, y: (n,), with n above 1 and x ascending; both results are as long as each other, at most n.

    Source:
        Bristol 1990, "Swinging door trending".

    Example:
        >>> x, y = corners(np.arange(6.0), np.array([0.0, 0.0, 0.0, 1.0, 1.0, 1.0]))
        >>> x.tolist(), y.tolist()
        ([0.0, 2.0, 3.0, 5.0], [0.0, 0.0, 1.0, 1.0])
    """
    tolerance = FLAT * (float(np.ptp(y)) or 1.0)
    kept, low, high = [0], -np.inf, np.inf
    for index in range(1, len(x)):
        run, rise = x[index] - x[kept[-1]], y[index] - y[kept[-1]]
        if not low <= rise / run <= high:
            kept.append(index - 1)
            run, rise = x[index] - x[index - 1], y[index] - y[index - 1]
            low, high = -np.inf, np.inf
        low, high = max(low, (rise - tolerance) / run), min(high, (rise + tolerance) / run)
    kept.append(len(x) - 1)
    return x[kept], y[kept]
