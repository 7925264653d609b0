"""amax of weights: from the values themselves, which are at hand."""

import numpy as np

from ptq_cli.amax.choice import Choice, symmetric_choice
from ptq_cli.amax.registry import METHODS
from ptq_cli.core.arithmetic import FloatArray
from ptq_cli.core.errors import require_known
from ptq_cli.core.formats import IntegerFormat
from ptq_cli.core.granularity import Granularity, PerAxis
from ptq_cli.recipe.schema import AmaxSettings


def choose_weight_ranges(
    weight: FloatArray, granularity: Granularity, settings: AmaxSettings, format: IntegerFormat
) -> tuple[Choice, ...]:
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
        >>> from ptq_cli.core.formats import INT8_NARROW
        >>> [item.amax for item in choose_weight_ranges(weight, PerAxis(0), AmaxSettings(), INT8_NARROW)]
        [2.0, 0.5]
    """
    require_known("amax method of weights", settings.weight_method, METHODS)
    of_values = METHODS[settings.weight_method].of_values
    if not isinstance(granularity, PerAxis):
        return (of_values(weight, settings, format),)
    axes = granularity.reduced_axes(weight.shape)  # raises where there is no such axis
    if settings.weight_method == "max":  # all channels at once, which a search cannot do
        amax = np.max(np.abs(weight), axis=axes, initial=0.0)
        return tuple(symmetric_choice(item) for item in amax.tolist())
    return tuple(of_values(channel, settings, format) for channel in np.moveaxis(weight, granularity.axis, 0))
