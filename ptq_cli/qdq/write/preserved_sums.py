"""Integers of a Conv whose errors add up to 0 in each filter and output channel, chosen without data.

What a Conv reads is seldom 0 on average: behind a Relu it never is. The part of its input that is constant
over a filter, or over all channels, is multiplied with the sum of the weights, and so with the sum of their
errors, which for the nearest integers is that of many small numbers. Rounding a few weights, those nearest to
the middle between two integers, the other way makes it smaller than half a step, at hardly any cost for the
rest of the input.

Source:
    Guo et al., "SQuant: On-the-Fly Data-Free Quantization via Diagonal Hessian Approximation", ICLR 2022,
    algorithms 2 and 3.
"""

import numpy as np
import numpy.typing as npt

from ptq_cli.core.arithmetic import FloatArray, QuantParameters
from ptq_cli.core.compiled import compiled
from ptq_cli.core.pair_sums import PairRule, mates_along
from ptq_cli.core.tensors import Array

Float64s = npt.NDArray[np.float64]

SPATIAL = 2  # the first axis of a Conv's weight that is one of its filter
HALF = 0.5  # steps
COUNTED = 1.5  # steps; a larger error is that of a value that the range cuts off: nothing makes up for it


def preserve_sums(
    integers: Array, weight: FloatArray, parameters: QuantParameters, axis: int, rule: PairRule | None
) -> Array:
    """Return integers of which some are one further from the weight, so that their errors add up to about 0.

    Of the nearest ``integers``, with a zero point of 0, along the ``axis`` of output channels; the ``rule``
    limits what two of them add up to.

    Shapes:
        weight, in real units: (M, C, …) or (C, M, …), with at least one spatial axis; integers: the same.

    Edge case:
        A channel whose errors add up to less than half a step stays as it is.

    Example:
        >>> from ptq_cli.core.formats import INT8_NARROW, PerAxis
        >>> one = QuantParameters(np.ones(1, np.float32), np.zeros(1, np.int64), INT8_NARROW, PerAxis(0))
        >>> weight = np.float32([[[1.4, 2.3, -3.7, 0.2]]])
        >>> preserve_sums(np.rint(weight).astype(np.int8), weight, one, 0, None).tolist()
        [[[2, 2, -4, 0]]]
    """
    channels = weight.shape[axis]
    steps = weight / parameters.scale.reshape(parameters.granularity.broadcast_shape(weight.shape))
    exact = np.moveaxis(steps, axis, 0).reshape(channels, -1).astype(np.float64)
    moved = np.moveaxis(integers, axis, 0)
    codes = moved.reshape(channels, -1).astype(np.float64)
    shape = [1 if index == axis else size for index, size in enumerate(weight.shape)]
    mates = np.empty((codes.shape[1], 0), np.int64) if rule is None else mates_along(rule, shape)
    ends = np.array([parameters.integers.qmin, parameters.integers.qmax, rule.largest if rule else np.inf])
    filter_size = int(np.prod(weight.shape[SPATIAL:]))
    if filter_size > 1:
        make_up(exact, codes, filter_size, ends, mates)
    make_up(exact, codes, codes.shape[1], ends, mates)
    return np.ascontiguousarray(np.moveaxis(codes.reshape(moved.shape), 0, axis)).astype(integers.dtype)


@compiled
def make_up(
    exact: Float64s, codes: Float64s, size: int, ends: Float64s, mates: npt.NDArray[np.int64]
) -> None:  # pragma: no cover - compiled
    """Round values of each group the other way, until their errors add up to less than half a step.

    Shapes:
        exact, codes: (channels, K), each K in groups of ``size``; mates: (K, any), -1 for none; ends: the
        lowest and the highest integer, and what two mates of one sign may add up to.
    """
    for channel in range(codes.shape[0]):
        for first in range(0, codes.shape[1], size):
            total = 0.0
            for i in range(first, first + size):
                error = exact[channel, i] - codes[channel, i]
                if abs(error) <= COUNTED:
                    total += error
            step = 1.0 if total > 0.0 else -1.0
            for _ in range(int(np.rint(abs(total)))):
                best, chosen = 0.0, -1
                for i in range(first, first + size):
                    # How far the weight lies on the side that it would be rounded to.
                    gain = step * (exact[channel, i] - codes[channel, i])
                    if gain <= best or gain > HALF:
                        continue
                    code = codes[channel, i] + step
                    fits = ends[0] <= code <= ends[1]
                    for m in mates[i]:
                        other = codes[channel, m] if m >= 0 else 0.0
                        fits = fits and (other * code <= 0.0 or abs(other + code) <= ends[2])
                    if fits:
                        best, chosen = gain, i
                if chosen < 0:
                    break
                codes[channel, chosen] += step
