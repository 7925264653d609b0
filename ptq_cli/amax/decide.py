"""From statistics and the recipe's amax settings to a range, and from the range to parameters."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ptq_cli.amax.choice import Choice, fixed_point_parameters, step_parameters
from ptq_cli.amax.finish import ANY_SCALE, ScaleRules, finish_scale
from ptq_cli.amax.method_registry import AUTO, find_method, require_method
from ptq_cli.collectors.bit_histogram import ChannelStatistics
from ptq_cli.collectors.tensor_statistics import TensorStatistics, each_channel
from ptq_cli.core.arithmetic import (
    ZERO_AMAX,
    FloatArray,
    QuantParameters,
    parameters_from_range,
    scale_from_amax,
)
from ptq_cli.core.formats import FloatFormat, Granularity, IntegerFormat, NumberFormat, PerTensor
from ptq_cli.recipe.quantizer_families import ActivationFamily, FixedPointActivations, StepActivations
from ptq_cli.recipe.sections import AmaxSettings


@dataclass(frozen=True)
class Decision:
    """Parameters of a tensor, and how they came about.

    Attributes:
        parameters: scale and zero point.
        method: the method's name, ``auto`` resolved.
        choice: the range it chose.
    """

    parameters: QuantParameters
    method: str
    choice: Choice


def check_amax_settings(settings: AmaxSettings) -> None:
    """Raise if the settings name no method.

    Raises:
        UnknownNameError: there is none of that name.
        PluginError: a plug-in with this name cannot be used.

    Example:
        >>> check_amax_settings(AmaxSettings(method="mse", weight_method="max"))
    """
    if settings.method != AUTO:
        require_method(settings.method, more=(AUTO,))
    require_method(settings.weight_method, "amax method of weights")


def resolve_method(settings: AmaxSettings, *, has_histogram: bool) -> str:
    """Return the method that ``auto`` stands for: percentile where histograms were kept, otherwise max.

    Example:
        >>> resolve_method(AmaxSettings(), has_histogram=True)
        'percentile'
        >>> resolve_method(AmaxSettings(), has_histogram=False)
        'max'
    """
    if settings.method != AUTO:
        return settings.method
    return "percentile" if has_histogram else "max"


def decide_range(
    statistics: TensorStatistics, settings: AmaxSettings, format: NumberFormat, *, symmetric: bool
) -> Choice:
    """Return the range of a tensor.

    A symmetric one is [-amax, amax]. An asymmetric one need not be as far from 0 on both sides, so that a
    rare outlier on one side costs the other side nothing.

    Edge case:
        A symmetric tensor of an unsigned format has the zero point in the middle: its levels are those of
        the signed format.

    Raises:
        MissingStatisticError: the method needs a histogram that was not kept.
        UnknownNameError: there is no such method.

    Example:
        >>> from ptq_cli.collectors.max_collector import MaxCollector
        >>> from ptq_cli.core.formats import UINT8
        >>> collector = MaxCollector()
        >>> collector.update(np.array([-1.0, 3.0], np.float32))
        True
        >>> choice = decide_range(collector.statistics(), AmaxSettings(method="max"), UINT8, symmetric=False)
        >>> choice.low, choice.high
        (-1.0, 3.0)
    """
    name = resolve_method(settings, has_histogram=statistics.histogram is not None)
    method = find_method(name, more=(AUTO,))
    # A float format has a value 0 and no zero point.
    if symmetric or isinstance(format, FloatFormat):
        return method.symmetric(statistics, settings, _signed(format))
    return method.asymmetric(statistics, settings, format)


def decide(
    statistics: TensorStatistics,
    settings: AmaxSettings,
    format: NumberFormat,
    *,
    symmetric: bool,
    family: ActivationFamily | None = None,
    rules: ScaleRules = ANY_SCALE,
    within: tuple[float, float] | None = None,
) -> Decision:
    """Return scale and zero point of an activation, and the range they come from.

    Args:
        statistics: of the tensor.
        settings: the method and its parameters.
        format: of the integers, or of floats of few bits.
        symmetric: the zero point is in the middle of the format.
        family: of the quantizer; None for a scaled one.
        rules: what the scale may be.
        within: beyond which a range of integers does not reach, unless it is symmetric.

    Shapes:
        scale and zero point: ().

    Edge case:
        A tensor that was always 0 gets scale 1.

    Raises:
        MissingStatisticError: the method needs a histogram that was not kept.

    Example:
        >>> from ptq_cli.collectors.max_collector import MaxCollector
        >>> from ptq_cli.core.formats import UINT8
        >>> collector = MaxCollector()
        >>> collector.update(np.array([0.0, 2.55], np.float32))
        True
        >>> decision = decide(collector.statistics(), AmaxSettings(method="max"), UINT8, symmetric=False)
        >>> round(float(decision.parameters.scale), 6), int(decision.parameters.zero_point)
        (0.01, 0)
    """
    choice = decide_range(statistics, settings, format, symmetric=symmetric)
    if within is not None and not symmetric and isinstance(format, IntegerFormat):
        choice = replace(choice, low=max(choice.low, within[0]), high=min(choice.high, within[1]))
    method = resolve_method(settings, has_histogram=statistics.histogram is not None)
    found = _parameters(choice, format, family, symmetric=symmetric)
    return Decision(finish_scale(found, rules), method, choice)


def _parameters(
    choice: Choice, format: NumberFormat, family: ActivationFamily | None, *, symmetric: bool
) -> QuantParameters:
    if isinstance(format, IntegerFormat):  # Only a scaled quantizer can be asked for a float format.
        if isinstance(family, FixedPointActivations):
            return fixed_point_parameters(choice, format, family.integer)
        if isinstance(family, StepActivations):
            return step_parameters(choice, format, family.step)
    return grid_of_range(choice.low, choice.high, format, symmetric=symmetric)


def grid_of_range(low: float, high: float, format: NumberFormat, *, symmetric: bool) -> QuantParameters:
    """Return the parameters of a scaled quantizer whose grid covers a range.

    Shapes:
        scale and zero point: ().

    Edge case:
        Symmetric parameters cover the end that is further from 0; a float format has no others.

    Raises:
        RecipeValueError: the bounds are not finite or ``low > high``.

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
    zero_point = 0 if format.signed else -int(_signed(format).qmin)
    scale = scale_from_amax(max(-low, high), _signed(format))
    return QuantParameters(scale, np.asarray(zero_point, np.int64), format)


def decide_channels(
    channels: ChannelStatistics, settings: AmaxSettings, format: NumberFormat, *, symmetric: bool
) -> tuple[Decision, ...]:
    """Return what ``decide`` makes of each channel's statistics.

    Shapes:
        one decision a channel; each has a scale and a zero point of shape ().

    Edge case:
        A channel that was always 0, or had no finite value, gets scale 1.

    Raises:
        MissingStatisticError: the method needs a histogram that was not kept.

    Example:
        >>> from ptq_cli.collectors.collector_registry import ChannelCollector
        >>> from ptq_cli.core.formats import INT8
        >>> collector = ChannelCollector(1)
        >>> collector.update(np.float32([[1.27, 2.54], [0.0, -0.5]]))
        >>> found = decide_channels(collector.statistics(), AmaxSettings(method="max"), INT8, symmetric=True)
        >>> [float(item.parameters.scale) for item in found]
        [0.009999999776482582, 0.019999999552965164]
    """
    return tuple(decide(item, settings, format, symmetric=symmetric) for item in each_channel(channels))


def _signed(format: NumberFormat) -> NumberFormat:
    return format if format.signed else IntegerFormat(format.bits, signed=True)


# amax of weights: from the values themselves, which are at hand.


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
