"""amax of weights: from the values themselves, which are at hand."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ptq_cli.amax.choice import Choice
from ptq_cli.amax.plugin_methods import find_method, require_method
from ptq_cli.core.numbers.arithmetic import ZERO_AMAX, FloatArray
from ptq_cli.core.numbers.formats import NumberFormat
from ptq_cli.core.numbers.granularity import Granularity, PerTensor
from ptq_cli.recipe.sections.calibration_sections import AmaxSettings


@dataclass(frozen=True, eq=False)
class WeightRanges:
    """The symmetric range of a weight, or of each of its channels.

    Attributes:
        amax: where it ends.
        unsearched: the method had one candidate only in every channel that is not all zero.

    Shapes:
        amax: as the granularity's scale; float64, as the method gave it.

    Units:
        amax: as the weight's values.
    """

    amax: npt.NDArray[np.float64]
    unsearched: bool = False


def choose_weight_ranges(
    weight: FloatArray, granularity: Granularity, settings: AmaxSettings, format: NumberFormat
) -> WeightRanges:
    """Return the symmetric range of a weight, or of each of its channels, by the recipe's weight method.

    Shapes:
        weight: any; as many ranges as the granularity's scale has elements.

    Edge case:
        A channel of zeros has an amax of 0.

    Raises:
        UnknownNameError: there is no such method.
        RecipeValueError: the weight has no such axis.

    Example:
        >>> weight = np.float32([[1.0, -2.0], [0.0, 0.5]])
        >>> from ptq_cli.core.numbers.formats import INT8_NARROW
        >>> from ptq_cli.core.numbers.granularity import PerAxis
        >>> choose_weight_ranges(weight, PerAxis(0), AmaxSettings(), INT8_NARROW).amax.tolist()
        [2.0, 0.5]
    """
    require_method(settings.weight_method, "amax method of weights")
    of_values = find_method(settings.weight_method).of_values
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
    """Return whether a method had one candidate only in all parts of a weight, those of zeros left out.

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
