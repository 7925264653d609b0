"""A range that a method decides, and the grids that hold it: even ones, powers of two, a given step."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from ptq_cli.core.arithmetic import ZERO_AMAX, QuantParameters, parameters_from_range, scale_from_amax
from ptq_cli.core.formats import IntegerFormat, NumberFormat


@dataclass(frozen=True)
class Choice:
    """A range that a method chose.

    Units: low, high: as the tensor's values.

    Example:
        >>> Choice(-0.5, 2.0).amax, symmetric_choice(2.0).low
        (2.0, -2.0)
    """

    DERIVED: ClassVar[tuple[str, ...]] = ("amax",)

    low: Annotated[float, "The lower end, 0 or below; -amax where it is symmetric."]
    high: Annotated[float, "The upper end, 0 or above."]
    candidates: Annotated[
        int | None,
        "How many ranges the method could choose from, or None where it computes one and does not search. "
        "With one candidate it chose nothing: the range is the whole one.",
    ] = None

    @property
    def amax(self) -> float:
        """The larger end's magnitude."""
        return max(-self.low, self.high)


def symmetric_choice(amax: float, candidates: int | None = None) -> Choice:
    """The range ``[-amax, amax]``.

    Example:
        >>> symmetric_choice(3.0, candidates=2)
        Choice(low=-3.0, high=3.0, candidates=2)
    """
    return Choice(-amax, amax, candidates)


def fixed_point_parameters(
    choice: Choice, format: IntegerFormat, integer: int | None = None
) -> QuantParameters:
    """The power-of-two scale of a tensor with ``integer`` bits before its binary point.

    The values lie in [0, 2^integer) where nothing is negative, otherwise in [-2^integer, 2^integer).

    Args:
        choice: the tensor's range, by an amax method.
        format: the integers. Where it does not fit the sign of the tensor, a zero point at its end or in its
            middle makes it fit.
        integer: bits before the point, without the sign; None for as few as hold amax.

    Shapes: scale and zero point: ().
    Edge case: An amax of exactly 2^integer saturates by one step. A tensor that was always 0 gets scale 1.
    Source: QKeras, ``quantized_bits``; Coelho et al. 2021.

    Example:
        >>> from ptq_cli.core.formats import UINT8
        >>> relu6 = fixed_point_parameters(Choice(0.0, 6.0), UINT8)
        >>> float(relu6.scale), int(relu6.zero_point)
        (0.03125, 0)
        >>> signed = fixed_point_parameters(Choice(-1.5, 1.0), UINT8)
        >>> float(signed.scale), int(signed.zero_point)
        (0.015625, 128)
    """
    negative = choice.low < 0
    if integer is None:
        if choice.amax <= ZERO_AMAX:
            return _parameters(1.0, format, negative)
        integer = bits_before_point(choice.amax)
    return _parameters(2.0 ** (integer - format.bits + negative), format, negative)


def bits_before_point(amax: float) -> int:
    """The smallest ``integer`` with ``amax <= 2^integer``.

    Example:
        >>> bits_before_point(6.0), bits_before_point(4.0), bits_before_point(0.3)
        (3, 2, -1)
    """
    mantissa, exponent = math.frexp(amax)
    return exponent - 1 if mantissa == 0.5 else exponent


def step_parameters(choice: Choice, format: IntegerFormat, step: float | None = None) -> QuantParameters:
    """Parameters whose values are the multiples of ``step``.

    Args:
        choice: the tensor's range, by an amax method.
        format: the integers.
        step: the distance of two values; None for the one with which the largest integer stands for amax.

    Shapes: scale and zero point: ().
    Edge case: A tensor that was always 0 gets scale 1.
    Source: SpikingJelly, ``step_quantize``.

    Example:
        >>> from ptq_cli.core.formats import UINT8
        >>> found = step_parameters(Choice(-1.27, 0.5), UINT8)
        >>> round(float(found.scale), 6), int(found.zero_point)
        (0.01, 128)
    """
    negative = choice.low < 0
    if step is None:
        largest = (1 << (format.bits - negative)) - 1
        step = _step_to(choice.amax, largest) if choice.amax > ZERO_AMAX else 1.0
    return _parameters(step, format, negative)


def _step_to(amax: float, largest: int) -> float:
    # Towards zero, as in parameters_from_range: a grid that reaches above a Clip's bound does not replace it.
    step = np.float32(amax / largest)
    return float(np.nextafter(step, np.float32(0)) if float(step) * largest > amax else step)


def _parameters(scale: float, format: IntegerFormat, negative: bool) -> QuantParameters:
    # The integers from 0 on are those of an unsigned format, and the signed ones lie about its middle.
    middle = 0 if format.signed else 1 << (format.bits - 1)
    zero_point = middle if negative else format.qmin
    return QuantParameters(np.asarray(scale, np.float32), np.asarray(zero_point, np.int64), format)


def grid_of_range(low: float, high: float, format: NumberFormat, *, symmetric: bool) -> QuantParameters:
    """The parameters of a scaled quantizer whose grid covers a range.

    Shapes: scale and zero point: ().
    Edge case: Symmetric parameters cover the end that is further from 0; a float format has no others.

    Raises: RecipeValueError: the bounds are not finite or ``low > high``.

    Example:
        >>> from ptq_cli.core.formats import INT8_NARROW, UINT8
        >>> int(grid_of_range(-1.0, 1.0, UINT8, symmetric=False).zero_point)
        128
        >>> grid = grid_of_range(-1.0, 1.27, INT8_NARROW, symmetric=True)
        >>> int(grid.zero_point), round(float(grid.scale), 6)
        (0, 0.01)
    """
    if not symmetric and isinstance(format, IntegerFormat):
        return parameters_from_range(low, high, format)
    # An unsigned format is then the signed one, shifted: its 255 steps are shared by both sides.
    zero_point = 0 if format.signed else -int(signed_format(format).qmin)
    scale = scale_from_amax(max(-low, high), signed_format(format))
    return QuantParameters(scale, np.asarray(zero_point, np.int64), format)


def signed_format(format: NumberFormat) -> NumberFormat:
    """The same, with a sign: its 255 steps are shared by both sides."""
    return format if format.signed else IntegerFormat(format.bits, signed=True)
