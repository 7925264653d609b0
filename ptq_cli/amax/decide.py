"""From statistics and the recipe's amax settings to a range, and from the range to parameters."""

from dataclasses import dataclass

import numpy as np

from ptq_cli.amax.choice import Choice
from ptq_cli.amax.method_registry import AUTO
from ptq_cli.amax.plugin_methods import find_method, require_method
from ptq_cli.collectors.statistics.channel_statistics import ChannelStatistics
from ptq_cli.collectors.statistics.tensor_statistics import TensorStatistics, each_channel
from ptq_cli.core.numbers.arithmetic import QuantParameters, parameters_from_range, scale_from_amax
from ptq_cli.core.numbers.formats import FloatFormat, IntegerFormat, NumberFormat
from ptq_cli.recipe.sections.calibration_sections import AmaxSettings


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
        >>> from ptq_cli.core.numbers.formats import UINT8
        >>> collector = MaxCollector()
        >>> collector.update(np.array([-1.0, 3.0], np.float32))
        True
        >>> choice = decide_range(collector.statistics(), AmaxSettings(method="max"), UINT8, symmetric=False)
        >>> choice.low, choice.high
        (-1.0, 3.0)
    """
    check_amax_settings(settings)
    method = find_method(resolve_method(settings, has_histogram=statistics.histogram is not None))
    # A float format has a value 0 and no zero point.
    if symmetric or isinstance(format, FloatFormat):
        return method.symmetric(statistics, settings, _signed(format))
    return method.asymmetric(statistics, settings, format)


def decide(
    statistics: TensorStatistics, settings: AmaxSettings, format: NumberFormat, *, symmetric: bool
) -> Decision:
    """Return scale and zero point of an activation, and the range they come from.

    Shapes:
        scale and zero point: ().

    Edge case:
        A tensor that was always 0 gets scale 1.

    Raises:
        MissingStatisticError: the method needs a histogram that was not kept.

    Example:
        >>> from ptq_cli.collectors.max_collector import MaxCollector
        >>> from ptq_cli.core.numbers.formats import UINT8
        >>> collector = MaxCollector()
        >>> collector.update(np.array([0.0, 2.55], np.float32))
        True
        >>> decision = decide(collector.statistics(), AmaxSettings(method="max"), UINT8, symmetric=False)
        >>> round(float(decision.parameters.scale), 6), int(decision.parameters.zero_point)
        (0.01, 0)
    """
    choice = decide_range(statistics, settings, format, symmetric=symmetric)
    method = resolve_method(settings, has_histogram=statistics.histogram is not None)
    if not symmetric and isinstance(format, IntegerFormat):
        return Decision(parameters_from_range(choice.low, choice.high, format), method, choice)
    # An unsigned format is then the signed one, shifted: its 255 steps are shared by both sides.
    zero_point = 0 if format.signed else -int(_signed(format).qmin)
    scale = scale_from_amax(choice.amax, _signed(format))
    return Decision(QuantParameters(scale, np.asarray(zero_point, np.int64), format), method, choice)


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
        >>> from ptq_cli.collectors.channel_collector import ChannelCollector
        >>> from ptq_cli.core.numbers.formats import INT8
        >>> collector = ChannelCollector(1)
        >>> collector.update(np.float32([[1.27, 2.54], [0.0, -0.5]]))
        >>> found = decide_channels(collector.statistics(), AmaxSettings(method="max"), INT8, symmetric=True)
        >>> [float(item.parameters.scale) for item in found]
        [0.009999999776482582, 0.019999999552965164]
    """
    return tuple(decide(item, settings, format, symmetric=symmetric) for item in each_channel(channels))


def _signed(format: NumberFormat) -> NumberFormat:
    return format if format.signed else IntegerFormat(format.bits, signed=True)
