"""amax of weights from the values themselves: of channels by any method, of blocks of few values by mse."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ptq_cli.amax.choice import Choice
from ptq_cli.amax.method_registry import find_method
from ptq_cli.core.arithmetic import ZERO_AMAX, FloatArray, QuantParameters
from ptq_cli.core.compiled import compiled
from ptq_cli.core.formats import Granularity, IntegerFormat, NumberFormat, PerAxis, PerTensor
from ptq_cli.recipe.sections import AmaxSettings


@dataclass(frozen=True, eq=False)
class WeightRanges:
    """The symmetric range of a weight, or of each of its channels.

    Attributes:
        amax: where it ends.
        unsearched: the method had one candidate only in every channel that is not all zero.

    Shapes: amax: as the granularity's scale; float64, as the method gave it.
    Units: amax: as the weight's values.
    """

    amax: npt.NDArray[np.float64]
    unsearched: bool = False


def choose_weight_ranges(
    weight: FloatArray, granularity: Granularity, settings: AmaxSettings, format: NumberFormat
) -> WeightRanges:
    """The symmetric range of a weight, or of each of its channels, by the recipe's weight method.

    Shapes: weight: any; as many ranges as the granularity's scale has elements.
    Edge case: A channel of zeros has an amax of 0.

    Raises: UnknownNameError: there is no such method. RecipeValueError: the weight has no such axis.

    Example:
        >>> weight = np.float32([[1.0, -2.0], [0.0, 0.5]])
        >>> from ptq_cli.core.formats import INT8_NARROW
        >>> from ptq_cli.core.formats import PerAxis
        >>> choose_weight_ranges(weight, PerAxis(0), AmaxSettings(), INT8_NARROW).amax.tolist()
        [2.0, 0.5]
    """
    of_values = find_method(settings.weight_method, "amax method of weights").of_values
    if isinstance(granularity, PerTensor):
        choice = of_values(weight, settings, format)
        return WeightRanges(np.asarray(choice.amax), _is_unsearched([choice]))
    axes = granularity.reduced_axes(weight.shape)  # raises where there is no such axis
    if settings.weight_method == "max":  # all channels at once, which a search cannot do
        # Two looks at the weight are faster than a copy of it without signs.
        amax = np.maximum(np.max(weight, axes, initial=0.0), np.abs(np.min(weight, axes, initial=0.0)))
        return WeightRanges(amax.astype(np.float64))
    shape = granularity.scale_shape(weight.shape)
    kept = [index for index in range(weight.ndim) if index not in axes]
    channels = np.moveaxis(weight, kept, range(len(kept)))
    choices = [of_values(channels[index], settings, format) for index in np.ndindex(shape)]
    found = np.asarray([item.amax for item in choices], np.float64).reshape(shape)
    return WeightRanges(found, _is_unsearched(choices))


def joined_unsearched(parts: Sequence[WeightRanges]) -> bool:
    """Whether a method had one candidate only in all parts of a weight, those of zeros left out.

    Example:
        >>> zeros, one = WeightRanges(np.zeros(2)), WeightRanges(np.ones(2), unsearched=True)
        >>> joined_unsearched([zeros, one]), joined_unsearched([WeightRanges(np.ones(2)), one])
        (True, False)
    """
    searched = [item.unsearched for item in parts if (item.amax > ZERO_AMAX).any()]
    return bool(searched) and all(searched)


def _is_unsearched(choices: Sequence[Choice]) -> bool:
    searched = [item.candidates for item in choices if item.amax > ZERO_AMAX]
    return bool(searched) and all(candidates == 1 for candidates in searched)


_Floats = npt.NDArray[np.float32]
# Scales that are tried, of the one that holds the whole block.
SHARES = np.arange(16, 65, dtype=np.float32) / 64
_POINTS = 3  # Zero points that are tried with each: the nearest one and its neighbors.


def mse_of_blocks(rows: FloatArray, format: IntegerFormat) -> QuantParameters:
    """Scales, and zero points if the format is unsigned, with the smallest squared errors of the values.

    A histogram's bins for 32 values would take 250 times as long, and a weight has millions of blocks.

    Shapes: rows: (blocks, values). The parameters': (blocks,).
    Edge case: Of equal errors the smallest scale wins. A block of zeros has scale 1.

    Example:
        >>> rows = np.float32([[-0.5, 0.5, 0.5, 0.5, 1.0], [0, 0, 0, 0, 0]])
        >>> mse_of_blocks(rows, IntegerFormat(2, signed=False)).zero_point.tolist()
        [1, 0]
    """
    scales, zeros = np.ones(len(rows), np.float32), np.zeros(len(rows), np.int64)
    ends = np.array([format.qmin, format.qmax], np.float32)
    best_of_blocks(np.ascontiguousarray(rows, np.float32), ends, SHARES, np.float32(ZERO_AMAX), scales, zeros)
    return QuantParameters(scales, zeros, format, PerAxis(0))


@compiled
def best_of_blocks(
    rows: _Floats,
    ends: _Floats,
    shares: _Floats,
    least: np.float32,
    scales: _Floats,
    zeros: npt.NDArray[np.int64],
) -> None:  # pragma: no cover - compiled
    """Write the best scale and zero point of each block; those of blocks below ``least`` stay.

    Shapes: rows: (B, V); ends: the lowest and the highest integer; shares: (S,); scales, zeros: (B,).
    """
    lowest, highest = ends[0], ends[1]
    points = _POINTS if lowest == 0 else 1
    trial, zero = np.empty(shares.size * points, np.float32), np.zeros(shares.size * points, np.float32)
    for block in range(rows.shape[0]):
        low, high = min(rows[block].min(), np.float32(0)), max(rows[block].max(), np.float32(0))
        width = high - low if points > 1 else max(-low, high)
        if width <= least:
            continue
        for index in range(trial.size):
            trial[index] = shares[index // points] * width / highest
            if points > 1:
                near = np.rint(-low / trial[index]) + np.float32(index % points - 1)
                zero[index] = min(max(near, np.float32(0)), highest)
        errors = np.zeros(trial.size, np.float32)
        for value in rows[block]:
            for index in range(trial.size):  # Side by side, as vectors compute them.
                steps = np.rint(value / trial[index])
                steps = min(max(steps, lowest - zero[index]), highest - zero[index])
                missed = value - steps * trial[index]
                errors[index] += missed * missed
        best = np.argmin(errors)
        scales[block], zeros[block] = trial[best], np.int64(zero[best])
