"""What a quantizer does to a line of values: the staircase, and the gradient that stands for its slope."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from ptq_cli.core.documents import HIDDEN
from ptq_cli.quantizers.assign import quantize_to_centers
from ptq_cli.quantizers.dorefa import affine_k_bit_quantize
from ptq_cli.quantizers.fixed_point_format import FixedPointFormat
from ptq_cli.quantizers.fixed_point_integers import fixed_point
from ptq_cli.quantizers.learning import learn_centers
from ptq_cli.quantizers.scaled.scaled_quantize import fake_quantize
from ptq_cli.quantizers.step import step_quantize
from ptq_cli.quantizers.straight_through import clamp
from ptq_cli.recipe.quantizer_families import QuantizerFamily, Value, drawing_settings

Quantizer = Callable[[torch.Tensor], torch.Tensor]
Floats = npt.NDArray[np.float64]
BEYOND = 0.25
"""Shown on both sides of the levels, relative to them: where values are clipped."""
STEPS = 4
"""Levels on both sides of 0, of a quantizer that has no end."""
LEARNED_FROM = 10_000
"""Normally distributed values."""
POINTS = 401
"""Inputs that the document has."""
FINE = (1 << 18) + 1
"""Values among which the levels are counted, of which 16 bits have 65536."""


@dataclass(frozen=True, eq=False)
class Curve:
    """A quantizer over a range."""

    quantizer: Quantizer
    low: float
    high: float

    def at(self, x: Floats) -> tuple[Floats, Floats]:
        """Return the results, and the gradients for an upstream gradient of 1.

        Shapes:
            x: any; both have the same.

        Example:
            >>> y, gradient = Curve(lambda x: clamp(x, -1.0, 1.0), -2.0, 2.0).at(np.array([0.5, 1.5]))
            >>> y.tolist(), gradient.tolist()
            ([0.5, 1.0], [1.0, 0.0])
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

    def levels(self) -> Floats:
        """Return the values that the result takes, ascending."""
        y, _ = self.at(np.linspace(self.low, self.high, FINE))
        # Adding 0 makes 0 of -0.
        return np.unique(y) + 0.0


@dataclass(frozen=True, eq=False, kw_only=True)
class Staircase:
    """A quantizer with its settings, drawn."""

    DERIVED: ClassVar[tuple[str, ...]] = ("name", "formula", "x", "y", "gradient")

    family: Annotated[QuantizerFamily, HIDDEN]
    settings: Annotated[Mapping[str, Any], "Its parameters."]
    curve: Annotated[Curve, HIDDEN]
    levels: Annotated[Floats, "The values that its output can have, ascending."]
    plot: Annotated[Path | None, "The file of the picture; null if none was asked for."] = None

    @property
    def name(self) -> str:
        """Name of the quantizer."""
        return self.family.name

    @property
    def formula(self) -> str:
        """What it computes."""
        return self.family.formula

    @property
    def x(self) -> Floats:
        """Inputs."""
        return self.curve.line(POINTS)

    @property
    def y(self) -> Floats:
        """The output for each input."""
        return self.curve.at(self.x)[0]

    @property
    def gradient(self) -> Floats:
        """The gradient for each input."""
        return self.curve.at(self.x)[1]


def staircase_of(family: QuantizerFamily, given: Mapping[str, Value]) -> Staircase:
    """Return the staircase of a quantizer; ``family.drawn`` has the settings."""
    settings = drawing_settings(family, given)
    curve = _MAKERS[family.name](**settings)
    return Staircase(family=family, settings=settings, curve=curve, levels=curve.levels())


def _beyond(quantizer: Quantizer, low: float, high: float) -> Curve:
    """Return a curve that goes on beyond its outermost levels."""
    margin = BEYOND * (high - low)
    return Curve(quantizer, low - margin, high + margin)


def _scaled(bits: int, amax: float, unsigned: bool, narrow_range: bool) -> Curve:
    def quantizer(x: torch.Tensor) -> torch.Tensor:
        return fake_quantize(x, amax, bits=bits, unsigned=unsigned, narrow_range=narrow_range)

    # An unsigned quantizer refuses negative values.
    return Curve(quantizer, 0.0, (1 + BEYOND) * amax) if unsigned else _beyond(quantizer, -amax, amax)


def _fixed_point(bits: int, integer: int, symmetric: bool, keep_negative: bool, alpha: float) -> Curve:
    def quantizer(x: torch.Tensor) -> torch.Tensor:
        return fixed_point(x, bits, integer, symmetric, keep_negative, alpha)

    format = FixedPointFormat(bits, integer, symmetric, keep_negative)
    return _beyond(quantizer, format.qmin * format.step, format.qmax * format.step)


def _dorefa(bits: int, amax: float) -> Curve:
    width, low = torch.tensor(2 * amax), torch.tensor(-amax)

    def quantizer(x: torch.Tensor) -> torch.Tensor:
        return affine_k_bit_quantize((clamp(x, -amax, amax) - low) / width, bits, width, low)

    return _beyond(quantizer, -amax, amax)


def _step(step: float) -> Curve:
    # A little less than half a step beyond the outermost level.
    end = (STEPS + 0.49) * step
    return Curve(lambda x: step_quantize(x, step), -end, end)


def _centers(centers: int, temperature: float, seed: int) -> Curve:
    generator = torch.Generator().manual_seed(seed)
    learned = learn_centers(torch.randn(LEARNED_FROM, generator=generator), centers, generator)
    low, high = float(learned.min()), float(learned.max())
    return _beyond(lambda x: quantize_to_centers(x, learned, temperature), low, high)


_MAKERS: Mapping[str, Callable[..., Curve]] = {
    "scaled": _scaled,
    "fixed_point": _fixed_point,
    "dorefa": _dorefa,
    "step": _step,
    "centers": _centers,
}
