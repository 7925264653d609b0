"""Which packages of plug-ins took part: a report has their versions."""

from collections.abc import Iterable

from ptq_cli.core.plugins import AMAX_METHODS, METRICS, TARGETS, plugins
from ptq_cli.recipe.schema import Recipe
from ptq_cli.report.metrics.spec import MetricSpec


def plugin_versions(recipe: Recipe, metrics: Iterable[MetricSpec]) -> dict[str, str]:
    """Return the versions of the packages whose plug-ins a model was made and measured with, by their names.

    Args:
        recipe: what the model was made with.
        metrics: what was measured.

    Example:
        >>> plugin_versions(Recipe(), [])
        {}
    """
    methods = {recipe.amax.method, recipe.amax.weight_method}
    methods |= {name for item in recipe.override for name in (item.amax, item.weight_amax) if name}
    used = {
        TARGETS: {recipe.quantization.target},
        AMAX_METHODS: methods,
        METRICS: {spec.metric for spec in metrics},
    }
    return {
        plugin.package: plugin.version
        for group, names in used.items()
        for plugin in plugins(group)
        if plugin.name in names
    }
