"""The amax methods of ptq by the name that ``amax.method`` and ``amax.weight_method`` take."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ptq_cli.amax.choice import Choice, symmetric_choice
from ptq_cli.amax.entropy import entropy_amax, entropy_range
from ptq_cli.amax.linear_histogram import LinearHistogram, histogram_of_values, linear_view
from ptq_cli.amax.mse import mse_amax, mse_range
from ptq_cli.amax.percentile import max_amax, missing_histogram, percentile_amax, percentile_of_values
from ptq_cli.collectors.tensor_statistics import TensorStatistics
from ptq_cli.core.arithmetic import FloatArray
from ptq_cli.core.entry_points import AMAX_METHODS, Plugin, find_plugin, plugin_names
from ptq_cli.core.errors import RecipeValueError, first_line
from ptq_cli.core.formats import FloatFormat, IntegerFormat, NumberFormat
from ptq_cli.core.words import require_known
from ptq_cli.recipe.sections import AmaxSettings

AUTO_METHOD = "auto"  # A further value of ``--amax``: percentile where histograms were kept, otherwise max.
_Decide = Callable[[TensorStatistics, AmaxSettings, NumberFormat], Choice]
Search = Callable[[LinearHistogram, IntegerFormat], Choice]
DecideValues = Callable[[FloatArray, AmaxSettings, NumberFormat], Choice]


@dataclass(frozen=True)
class _Method:
    """How a method decides.

    Attributes:
        symmetric: the range [-amax, amax] from statistics.
        asymmetric: a range with a zero point from statistics.
        of_values: the range [-amax, amax] from the values themselves, such as a weight's channel.
    """

    symmetric: _Decide
    asymmetric: _Decide
    of_values: DecideValues


def clipped(statistics: TensorStatistics, amax: float) -> Choice:
    """Part of [min, max] within amax: a rare outlier on one side costs the other side nothing.

    Example:
        >>> from ptq_cli.collectors.max_collector import MaxCollector
        >>> collector = MaxCollector()
        >>> collector.update(np.array([-1.0, 3.0], np.float32))
        True
        >>> clipped(collector.statistics(), 2.0)
        Choice(low=-1.0, high=2.0, candidates=None)
    """
    low, high = min(statistics.low, 0.0), max(statistics.high, 0.0)
    return Choice(max(low, -amax), min(high, amax))


def _levels(format: IntegerFormat) -> int:
    """How many levels the magnitudes of a symmetric tensor share."""
    return 1 << (format.bits - 1 if format.signed else format.bits)


def integer_format(method: str, format: NumberFormat) -> IntegerFormat:
    """The format if it is one of integers.

    Raises: RecipeValueError: it is one of floats, whose steps differ in size.

    Example:
        >>> integer_format("mse", IntegerFormat(8, signed=True)).bits
        8
    """
    if isinstance(format, FloatFormat):
        raise RecipeValueError(
            f"the amax method '{method}' needs evenly spaced steps, and {format.name} has none",
            hint="choose max or percentile for it",
        )
    return format


def _searching(name: str, symmetric: Search, asymmetric: Search) -> _Method:
    """A method that searches the linear view."""

    def view(statistics: TensorStatistics, settings: AmaxSettings) -> LinearHistogram:
        if statistics.histogram is None:
            raise missing_histogram(name)
        return linear_view(statistics, settings.bins)

    return _Method(
        lambda statistics, settings, format: symmetric(
            view(statistics, settings), integer_format(name, format)
        ),
        lambda statistics, settings, format: asymmetric(
            view(statistics, settings), integer_format(name, format)
        ),
        lambda values, settings, format: symmetric(
            histogram_of_values(values, settings.bins), integer_format(name, format)
        ),
    )


METHODS: dict[str, _Method] = {
    "max": _Method(
        symmetric=lambda statistics, _settings, _format: symmetric_choice(max_amax(statistics)),
        asymmetric=lambda statistics, _settings, _format: clipped(statistics, max_amax(statistics)),
        of_values=lambda values, _settings, _format: symmetric_choice(
            float(np.max(np.abs(values), initial=0.0))
        ),
    ),
    "percentile": _Method(
        symmetric=lambda statistics, settings, _format: symmetric_choice(
            percentile_amax(statistics, settings.percentile)
        ),
        asymmetric=lambda statistics, settings, _format: clipped(
            statistics, percentile_amax(statistics, settings.percentile)
        ),
        of_values=lambda values, settings, _format: symmetric_choice(
            percentile_of_values(values, settings.percentile)
        ),
    ),
    "entropy": _searching(
        "entropy",
        lambda view, format: entropy_amax(view, _levels(format)),
        lambda view, format: entropy_range(view, 1 << format.bits),
    ),
    "mse": _searching("mse", mse_amax, mse_range),
}


DecidePlugin = Callable[[LinearHistogram, int], Any]


def method_names() -> tuple[str, ...]:
    """The names of all methods: those of ptq, and those of plug-ins.

    Example:
        >>> method_names()[:4]
        ('max', 'percentile', 'entropy', 'mse')
    """
    return (*METHODS, *plugin_names(AMAX_METHODS))


def require_method(name: str, what: str = "amax method", more: tuple[str, ...] = ()) -> None:
    """Refuse a name that no method has.

    Args:
        name: what the user wrote.
        what: the setting, for the message.
        more: names that are valid, too.

    Raises: UnknownNameError: there is no such method. PluginError: a plug-in with this name cannot be used.

    Example:
        >>> require_method("mse")
    """
    if find_plugin(AMAX_METHODS, name, (AUTO_METHOD, *METHODS)) is None:
        require_known(what, name, (*more, *method_names()))


def find_method(name: str, what: str = "amax method", more: tuple[str, ...] = ()) -> _Method:
    """The method with this name; the package of a plug-in is imported now.

    Args:
        name: what the user wrote.
        what: the setting, for the message.
        more: names that are valid there, too, for the message.

    Raises: UnknownNameError: there is no such method. PluginError: a plug-in with this name cannot be used.

    Example:
        >>> find_method("max") is METHODS["max"]
        True
    """
    if name in METHODS:  # Recipes were checked: no plug-in has the name of one of these.
        return METHODS[name]
    plugin = find_plugin(AMAX_METHODS, name, (AUTO_METHOD, *METHODS))
    if plugin is not None:
        return _method_of(plugin)
    require_known(what, name, (*more, *method_names()))
    raise AssertionError("an unknown name was refused")


def _method_of(plugin: Plugin) -> _Method:
    function = plugin.load()
    if not callable(function):
        raise plugin.failed(f"is a {type(function).__name__}, expected a function")

    def of_statistics(statistics: TensorStatistics, settings: AmaxSettings, levels: int) -> float:
        if statistics.histogram is None:
            raise missing_histogram(plugin.name)
        return _amax(plugin, function, linear_view(statistics, settings.bins), levels)

    def symmetric(statistics: TensorStatistics, settings: AmaxSettings, format: NumberFormat) -> Choice:
        levels = _levels(integer_format(plugin.name, format))
        return symmetric_choice(of_statistics(statistics, settings, levels))

    def asymmetric(statistics: TensorStatistics, settings: AmaxSettings, format: NumberFormat) -> Choice:
        integers = integer_format(plugin.name, format)
        has_both_sides = statistics.low < 0.0 < statistics.high
        levels = 1 << (integers.bits - 1 if has_both_sides else integers.bits)
        return clipped(statistics, of_statistics(statistics, settings, levels))

    def of_values(values: FloatArray, settings: AmaxSettings, format: NumberFormat) -> Choice:
        view = histogram_of_values(values, settings.bins)
        levels = _levels(integer_format(plugin.name, format))
        return symmetric_choice(_amax(plugin, function, view, levels))

    return _Method(symmetric=symmetric, asymmetric=asymmetric, of_values=of_values)


def _amax(plugin: Plugin, function: DecidePlugin, view: LinearHistogram, levels: int) -> float:
    """Amax of a plug-in's function; it is not asked about a tensor that was always 0."""
    if view.top == 0.0:
        return 0.0
    try:
        found = float(function(view, levels))
    except Exception as error:
        raise plugin.failed(f"raised {type(error).__name__}: {first_line(error)}") from error
    if not (math.isfinite(found) and found > 0.0):
        raise plugin.failed(f"returned {found:g}, expected an amax above 0")
    return min(found, view.top)
