"""From statistics and the recipe's amax settings to a range, and from the range to parameters."""

from dataclasses import dataclass, replace

from ptq_cli.amax.choice import Choice, fixed_point_parameters, grid_of_range, signed_format, step_parameters
from ptq_cli.amax.finish import ANY_SCALE, ScaleRules, finish_scale
from ptq_cli.amax.method_registry import AUTO, find_method, require_method
from ptq_cli.collectors.channel_statistics import ChannelStatistics
from ptq_cli.collectors.tensor_statistics import TensorStatistics, each_channel
from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.formats import FloatFormat, IntegerFormat, NumberFormat
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

    Raises: UnknownNameError: there is none of that name. PluginError: a plug-in with this name cannot be
        used.

    Example:
        >>> check_amax_settings(AmaxSettings(method="mse", weight_method="max"))
    """
    if settings.method != AUTO:
        require_method(settings.method, more=(AUTO,))
    require_method(settings.weight_method, "amax method of weights")


def resolve_method(settings: AmaxSettings, *, has_histogram: bool) -> str:
    """The method that ``auto`` stands for: percentile where histograms were kept, otherwise max.

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
    """The range of a tensor.

    A symmetric one is [-amax, amax]. An asymmetric one need not be as far from 0 on both sides, so that a
    rare outlier on one side costs the other side nothing.

    Edge case: A symmetric tensor of an unsigned format has the zero point in the middle: its levels are those
        of the signed format.

    Raises: MissingStatisticError: the method needs a histogram that was not kept. UnknownNameError: there is
        no such method.

    Example:
        >>> import numpy as np
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
        return method.symmetric(statistics, settings, signed_format(format))
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
    """Scale and zero point of an activation, and the range they come from.

    Args:
        statistics: of the tensor.
        settings: the method and its parameters.
        format: of the integers, or of floats of few bits.
        symmetric: the zero point is in the middle of the format.
        family: of the quantizer; None for a scaled one.
        rules: what the scale may be.
        within: beyond which a range of integers does not reach, unless it is symmetric.

    Shapes: scale and zero point: ().
    Edge case: A tensor that was always 0 gets scale 1.

    Raises: MissingStatisticError: the method needs a histogram that was not kept.

    Example:
        >>> import numpy as np
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


def decide_channels(
    channels: ChannelStatistics, settings: AmaxSettings, format: NumberFormat, *, symmetric: bool
) -> tuple[Decision, ...]:
    """Decision for each channel's statistics.

    Shapes: one decision a channel; each has a scale and a zero point of shape ().
    Edge case: A channel that was always 0, or had no finite value, gets scale 1.

    Raises: MissingStatisticError: the method needs a histogram that was not kept.

    Example:
        >>> import numpy as np
        >>> from ptq_cli.collectors.channel_collector import ChannelCollector
        >>> from ptq_cli.core.formats import INT8
        >>> collector = ChannelCollector(1)
        >>> collector.update(np.float32([[1.27, 2.54], [0.0, -0.5]]))
        >>> found = decide_channels(collector.statistics(), AmaxSettings(method="max"), INT8, symmetric=True)
        >>> [float(item.parameters.scale) for item in found]
        [0.009999999776482582, 0.019999999552965164]
    """
    return tuple(decide(item, settings, format, symmetric=symmetric) for item in each_channel(channels))
