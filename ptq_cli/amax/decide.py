"""From statistics and the recipe's amax settings to a range, and from the range to parameters."""

import numpy as np

from ptq_cli.amax.max import max_amax
from ptq_cli.amax.percentile import percentile_amax
from ptq_cli.collectors.statistics import TensorStatistics
from ptq_cli.core.arithmetic import QuantParameters, parameters_from_range, scale_from_amax
from ptq_cli.core.errors import require_known
from ptq_cli.core.formats import IntegerFormat
from ptq_cli.recipe.schema import AmaxSettings

METHODS = ("max", "percentile")
AUTO = "auto"


def check_amax_settings(settings: AmaxSettings) -> None:
    """Raise if the settings name no method.

    Raises:
        UnknownNameError: there is none of that name.

    Example:
        >>> check_amax_settings(AmaxSettings(method="max"))
    """
    require_known("amax method", settings.method, (AUTO, *METHODS))


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


def decide_amax(statistics: TensorStatistics, settings: AmaxSettings) -> float:
    """Return the amax of a tensor.

    Raises:
        MissingStatisticError: the method needs a histogram that was not kept.
        UnknownNameError: there is no such method.
    """
    check_amax_settings(settings)
    if resolve_method(settings, has_histogram=statistics.histogram is not None) == "max":
        return max_amax(statistics)
    return percentile_amax(statistics, settings.percentile)


def decide_parameters(
    statistics: TensorStatistics, settings: AmaxSettings, format: IntegerFormat, *, symmetric: bool
) -> QuantParameters:
    """Return scale and zero point of an activation.

    A symmetric tensor covers [-amax, amax]. An asymmetric one covers what of [min, max] lies within amax, so
    that a rare outlier on one side does not cost the other side anything.

    Shapes:
        scale and zero point: ().

    Edge case:
        A tensor that was always 0 gets scale 1.

    Raises:
        MissingStatisticError: the method needs a histogram that was not kept.

    Example:
        >>> from ptq_cli.collectors.max import MaxCollector
        >>> from ptq_cli.core.formats import UINT8
        >>> collector = MaxCollector()
        >>> collector.update(np.array([0.0, 2.55], np.float32))
        True
        >>> statistics = collector.statistics()
        >>> parameters = decide_parameters(statistics, AmaxSettings("max"), UINT8, symmetric=False)
        >>> round(float(parameters.scale), 6), int(parameters.zero_point)
        (0.01, 0)
    """
    amax = decide_amax(statistics, settings)
    if symmetric:
        # An unsigned format is then the signed one, shifted: its 255 steps are shared by both sides.
        signed = IntegerFormat(format.bits, signed=True)
        zero_point = 0 if format.signed else -signed.qmin
        return QuantParameters(scale_from_amax(amax, signed), np.asarray(zero_point, np.int64), format)
    return parameters_from_range(max(statistics.low, -amax), min(statistics.high, amax), format)
