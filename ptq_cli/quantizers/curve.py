"""A quantizer over a range of values: what is drawn of it, and its gradient.

Each family's module has a function ``curve``, which takes what ``QuantizerFamily.drawn`` declares.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

Quantizer = Callable[[torch.Tensor], torch.Tensor]
Floats = npt.NDArray[np.float64]
BEYOND = 0.25  # Shown on both sides of the levels, relative to them: where values are clipped.
FINE = (1 << 18) + 1  # Values among which the levels are counted, of which 16 bits have 65536.


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
        """The results, and the gradients for an upstream gradient of 1.

        Shapes: x: any; both have the same.

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
        """The middles of ``count`` equal parts of the range."""
        edges = np.linspace(self.low, self.high, count + 1)
        middles: Floats = (edges[1:] + edges[:-1]) / 2
        return middles

    def levels(self) -> Floats:
        """The values that the result takes, ascending."""
        y, _ = self.at(np.linspace(self.low, self.high, FINE))
        # Adding 0 makes 0 of -0.
        return np.unique(y) + 0.0


def beyond(quantizer: Quantizer, low: float, high: float) -> Curve:
    """A curve that goes on beyond its outermost levels."""
    margin = BEYOND * (high - low)
    return Curve(quantizer, low - margin, high + margin)
