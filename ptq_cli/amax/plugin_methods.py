"""Amax methods of other packages: a function from a histogram of magnitudes to an amax."""

import math
from collections.abc import Callable
from typing import Any

from ptq_cli.amax.choice import Choice, symmetric_choice
from ptq_cli.amax.method_registry import AUTO, METHODS, Method, clipped, integer_format
from ptq_cli.amax.methods.linear_histogram import LinearHistogram, histogram_of_values, linear_view
from ptq_cli.amax.methods.percentile import missing_histogram
from ptq_cli.collectors.statistics.tensor_statistics import TensorStatistics
from ptq_cli.core.errors.error_text import first_line
from ptq_cli.core.known_names import require_known
from ptq_cli.core.numbers.arithmetic import FloatArray
from ptq_cli.core.numbers.formats import IntegerFormat, NumberFormat
from ptq_cli.core.plugins import AMAX_METHODS, Plugin, find_plugin, plugin_names
from ptq_cli.recipe.sections.calibration_sections import AmaxSettings

Decide = Callable[[LinearHistogram, int], Any]


def method_names() -> tuple[str, ...]:
    """Return the names of all methods: those of ptq, and those of plug-ins.

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

    Raises:
        UnknownNameError: there is no such method.
        PluginError: a plug-in with this name cannot be used.

    Example:
        >>> require_method("mse")
    """
    if find_plugin(AMAX_METHODS, name, (AUTO, *METHODS)) is None:
        require_known(what, name, (*more, *method_names()))


def find_method(name: str) -> Method:
    """Return the method with this name; the package of a plug-in is imported now.

    Raises:
        UnknownNameError: there is no such method.
        PluginError: a plug-in with this name cannot be used.

    Example:
        >>> find_method("max") is METHODS["max"]
        True
    """
    plugin = find_plugin(AMAX_METHODS, name, (AUTO, *METHODS))
    if plugin is not None:
        return _method_of(plugin)
    require_known("amax method", name, METHODS)
    return METHODS[name]


def _method_of(plugin: Plugin) -> Method:
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
        return symmetric_choice(_amax(plugin, function, view, _levels(integer_format(plugin.name, format))))

    return Method(symmetric=symmetric, asymmetric=asymmetric, of_values=of_values)


def _levels(format: IntegerFormat) -> int:
    return 1 << (format.bits - 1 if format.signed else format.bits)


def _amax(plugin: Plugin, function: Decide, view: LinearHistogram, levels: int) -> float:
    """Return what the function of a plug-in decides; it is not asked about a tensor that was always 0."""
    if view.top == 0.0:
        return 0.0
    try:
        found = float(function(view, levels))
    except Exception as error:
        raise plugin.failed(f"raised {type(error).__name__}: {first_line(error)}") from error
    if not (math.isfinite(found) and found > 0.0):
        raise plugin.failed(f"returned {found:g}, expected an amax above 0")
    return min(found, view.top)
