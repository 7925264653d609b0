"""Parameters of activations on grids that are not spread over their range: powers of two, a given step."""

import math

import numpy as np

from ptq_cli.amax.choice import Choice
from ptq_cli.core.numbers.arithmetic import ZERO_AMAX, QuantParameters
from ptq_cli.core.numbers.formats import IntegerFormat


def fixed_point_parameters(
    choice: Choice, format: IntegerFormat, integer: int | None = None
) -> QuantParameters:
    """Return the power-of-two scale of a tensor with ``integer`` bits before its binary point.

    The values lie in [0, 2^integer) where nothing is negative, otherwise in [-2^integer, 2^integer).

    Args:
        choice: the tensor's range, by an amax method.
        format: the integers. Where it does not fit the sign of the tensor, a zero point at its end or in its
            middle makes it fit.
        integer: bits before the point, without the sign; None for as few as hold amax.

    Shapes:
        scale and zero point: ().

    Edge case:
        An amax of exactly 2^integer saturates by one step. A tensor that was always 0 gets scale 1.

    Source:
        QKeras, ``quantized_bits``; Coelho et al. 2021.

    Example:
        >>> from ptq_cli.core.numbers.formats import UINT8
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
    """Return the smallest ``integer`` with ``amax <= 2^integer``.

    Example:
        >>> bits_before_point(6.0), bits_before_point(4.0), bits_before_point(0.3)
        (3, 2, -1)
    """
    mantissa, exponent = math.frexp(amax)
    return exponent - 1 if mantissa == 0.5 else exponent


def step_parameters(choice: Choice, format: IntegerFormat, step: float | None = None) -> QuantParameters:
    """Return parameters whose values are the multiples of ``step``.

    Args:
        choice: the tensor's range, by an amax method.
        format: the integers.
        step: the distance of two values; None for the one with which the largest integer stands for amax.

    Shapes:
        scale and zero point: ().

    Edge case:
        A tensor that was always 0 gets scale 1.

    Source:
        SpikingJelly, ``step_quantize``.

    Example:
        >>> from ptq_cli.core.numbers.formats import UINT8
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
