"""Which metrics are measured: what was named, what the recipe defines, and what limits ask for."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ptq_cli.core.entry_points import is_entry_point
from ptq_cli.core.errors import RecipeValueError
from ptq_cli.evaluation.metrics.metric_registry import (
    PAIR_METRICS,
    REQUESTED_COMPARISONS,
    is_requested_metric,
    plugin_metric,
    require_metric,
)
from ptq_cli.recipe.sections import MetricSettings

_WITH_OUTPUT = re.compile(r"(.*?:\w+|\w+)\[(.+)\]", re.DOTALL)
"""A callable's name holds no bracket, so that what ends with one names an output."""


@dataclass(frozen=True, kw_only=True)
class MetricSpec:
    """One metric that is measured on each model.

    Attributes:
        metric: a name of ptq's or of a plug-in, ``package.module:Class`` or ``file.py:callable``.
        output: the output that it judges; None for the first.
        higher_is_better: False for an error; None if the metric says so itself.
    """

    name: str
    metric: str
    output: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    higher_is_better: bool | None = None

    @property
    def needs_labels(self) -> bool:
        """Whether the data must have labels: neither the inputs nor the float model tell what is right."""
        of_inputs = self.metric == "perplexity" or self.metric in REQUESTED_COMPARISONS
        return not of_inputs or self.arguments.get("against") == "labels"

    @property
    def is_named_code(self) -> bool:
        """Whether it is code that the user named, not a metric of ptq or of a plug-in."""
        return is_entry_point(self.metric)

    @property
    def code(self) -> str | None:
        """The class or function that computes it; None for a metric of ptq."""
        if self.is_named_code:
            return self.metric
        plugin = plugin_metric(self.metric)
        return plugin.value if plugin is not None else None


def split_output(text: str) -> tuple[str, str | None]:
    """Return a metric and the output that it names in brackets, if it does."""
    found = _WITH_OUTPUT.fullmatch(text)
    return (found[1], found[2]) if found else (text, None)


def metric_specs(
    names: Sequence[str], defined: Sequence[MetricSettings] = (), limited: Iterable[str] = ()
) -> tuple[MetricSpec, ...]:
    """Return what is measured on each model: what is named, what is defined, what limits name; each once.

    A defined metric may be named by its name or by what it computes.

    Edge case:
        A metric that compares the models may be named too; it is computed anyway, so it asks for nothing.
    """
    own = [_defined(settings) for settings in defined]
    aliases = {alias for spec in own for alias in (spec.name, spec.metric, _written(spec))}
    named = [_named(text, [spec.name for spec in own]) for text in names if text not in aliases]
    asked = [_named(text, []) for text in limited if is_requested_metric(split_output(text)[0])]
    found: dict[str, MetricSpec] = {}
    for spec in (*(item for item in named if item is not None), *own, *(item for item in asked if item)):
        # A limit on a defined name means that definition.
        other = found.setdefault(spec.name, spec)
        if other != spec and spec not in asked:
            raise RecipeValueError(
                f"two metrics have the name '{spec.name}': {_written(other)} and {_written(spec)}",
                hint="give one of them another name under [[metric]] in ptq.toml",
            )
    return tuple(found.values())


def _written(spec: MetricSpec) -> str:
    return spec.metric if spec.output is None else f"{spec.metric}[{spec.output}]"


def _named(text: str, defined: Sequence[str]) -> MetricSpec | None:
    """Return what a text names; None for a metric that is computed anyway."""
    metric, output = split_output(text)
    if is_entry_point(metric):
        return MetricSpec(name=_default_name(metric, output), metric=metric, output=output)
    require_metric(metric, defined)
    return None if metric in PAIR_METRICS else MetricSpec(name=text, metric=metric, output=output)


def _defined(settings: MetricSettings) -> MetricSpec:
    metric, output = split_output(settings.metric)
    if not is_entry_point(metric):
        require_metric(metric)
        if metric in PAIR_METRICS:
            raise RecipeValueError(
                f"'metric.metric' is '{metric}', which is always computed and has no arguments",
                hint="remove this [[metric]] table",
            )
    return MetricSpec(
        name=settings.name or _default_name(metric, output),
        metric=metric,
        output=output,
        arguments=settings.arguments,
        higher_is_better=settings.higher_is_better,
    )


def _default_name(metric: str, output: str | None) -> str:
    """Return what the report calls a metric that has no name of its own."""
    name = metric.rpartition(":")[2]
    return name if output is None else f"{name}[{output}]"
