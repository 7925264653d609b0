"""Which metrics are measured: named, of the recipe, asked for by limits; metrics of the user's code."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ptq_cli.core.entry_points import is_entry_point, load_entry_point
from ptq_cli.core.errors import MetricError, RecipeValueError, first_line
from ptq_cli.core.tensors import Array
from ptq_cli.evaluation.document.measurement import Unit
from ptq_cli.evaluation.metrics.base import (
    LabelMetric,
    Labels,
    Recorded,
    Resampling,
    State,
    Targets,
    as_number,
    described,
    raised,
    require_samples_first,
)
from ptq_cli.evaluation.metrics.metric_registry import (
    PAIR_METRICS,
    REQUESTED_COMPARISONS,
    is_requested_metric,
    make_label_metric,
    plugin_metric,
    require_metric,
)
from ptq_cli.recipe.sections import MetricSettings

# A callable's name holds no bracket, so that what ends with one names an output.
_WITH_OUTPUT = re.compile(r"(.*?:\w+|\w+)\[(.+)\]", re.DOTALL)


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


Make = Callable[[], LabelMetric]
NO_SHARES = "a class with update and compute does not tell what each sample contributes"
ONE_PROCESS = (
    "leave the metric out, evaluate in one process, or name a function that returns one number per sample"
)
# Arguments of torchmetrics that the output tells, where the recipe does not give them.
CLASS_COUNTS = ("num_classes", "num_labels")


def metric_maker(spec: MetricSpec, classes: int | None = None) -> Make:
    """Return what makes a new metric for each model; one is made at once, to see that it can be."""
    plugin = None if spec.is_named_code else plugin_metric(spec.metric)
    if plugin is not None:
        named = plugin.load()
        if not callable(named):
            raise plugin.failed(f"is a {type(named).__name__}, expected a function or a class")
    elif spec.is_named_code:
        named = load_entry_point(spec.metric, Path.cwd(), "--metric", spec.arguments)
    else:
        return _checked(lambda: make_label_metric(spec.metric, dict(spec.arguments)), spec)
    if _is_torchmetrics(named):
        from ptq_cli.evaluation.metrics.torch_metric import TorchMetric

        arguments = _with_class_count(named, spec.arguments, classes)
        return _checked(lambda: TorchMetric(spec.name, named(**arguments), spec.higher_is_better), spec)
    if inspect.isclass(named):
        return _checked(
            lambda: StreamingClass(spec.name, named(**spec.arguments), spec.higher_is_better), spec
        )
    better = _better(named, spec.higher_is_better)
    return lambda: PlainFunction(spec.name, named, spec.arguments, higher_is_better=better)


class PlainFunction(Recorded):
    """``function(output, labels, **arguments)``, which gives a number a sample; their mean is the value."""

    unit: ClassVar[Unit] = "number"
    targets: ClassVar[Targets] = "any"

    def __init__(
        self, name: str, function: Callable[..., Any], arguments: Mapping[str, Any], *, higher_is_better: bool
    ) -> None:
        super().__init__()
        self.name = name
        self._function = function
        self._arguments = arguments
        self.higher_is_better = higher_is_better

    def update(self, output: Array, labels: Labels) -> None:
        """Keep one batch's numbers."""
        require_samples_first(self.name, output, labels)
        try:
            found = np.asarray(self._function(output, labels, **self._arguments))
        except Exception as error:
            raise raised(self.name, error) from error
        if found.dtype.kind not in "biuf" or found.shape != (len(output),):
            raise MetricError(
                f"{self.name} gave {described(found)} for a batch of {len(output)} samples",
                hint="a function returns one number per sample; a metric that is not their mean needs a "
                "class with update and compute",
            )
        self._add(found.astype(np.float64)[:, None])


class StreamingClass:
    """An instance of the user's class, with ``update(output, labels)`` and ``compute()``.

    With ``state_dict()`` and ``load_state_dict(state)``, of arrays by name, an evaluation that was killed
    goes on; without them it starts from the beginning.
    """

    unit: ClassVar[Unit] = "number"
    targets: ClassVar[Targets] = "any"

    def __init__(self, name: str, instance: Any, higher_is_better: bool | None) -> None:
        self._name = name
        self._instance = instance
        self.higher_is_better = _better(instance, higher_is_better)
        for method in ("update", "compute"):
            if not callable(getattr(instance, method, None)):
                raise MetricError(
                    f"{name} is a class that does not have '{method}'",
                    hint="a class needs update(output, labels) and compute(); or name a function that gives "
                    "one number for each sample",
                )

    @property
    def is_resumable(self) -> bool:
        """Whether it can continue from a checkpoint."""
        methods = ("state_dict", "load_state_dict")
        return all(callable(getattr(self._instance, method, None)) for method in methods)

    @property
    def indivisible(self) -> str:
        """Why the parts of a set cannot be measured apart."""
        return NO_SHARES

    def update(self, output: Array, labels: Labels) -> None:
        """Hand over one batch."""
        require_samples_first(self._name, output, labels)
        try:
            self._instance.update(output, labels)
        except Exception as error:
            raise raised(self._name, error) from error

    def compute(self) -> float:
        """Return the value over all samples so far."""
        try:
            found = np.asarray(self._instance.compute())
        except Exception as error:
            raise raised(self._name, error) from error
        return as_number(self._name, found)

    def resampling(self) -> Resampling:
        """Return why there is none."""
        return NO_SHARES

    def state(self) -> State:
        """Return what a checkpoint holds."""
        return {name: np.asarray(value) for name, value in self._instance.state_dict().items()}

    def start_at(self, sample: int) -> None:
        """Begin with the first sample; others must not come elsewhere, see ``indivisible``."""
        if sample:
            raise MetricError(f"{self._name} cannot be measured in parts: {NO_SHARES}", hint=ONE_PROCESS)

    def join(self, states: Sequence[State]) -> None:
        """Go on from the only part."""
        (only,) = states
        self._instance.load_state_dict(dict(only))


def _checked(make: Make, spec: MetricSpec) -> Make:
    try:
        make()
    except MetricError:
        raise
    except Exception as error:
        given = ", ".join(f"{name} = {value!r}" for name, value in spec.arguments.items())
        raise MetricError(
            f"{spec.metric} cannot be made {f'with {given}' if given else 'without arguments'}: "
            f"{type(error).__name__}: {first_line(error)}",
            hint=f"put its constructor's arguments into ptq.toml: [[metric]] metric = '{spec.metric}' "
            "arguments = { NAME = VALUE }",
        ) from error
    return make


def _is_torchmetrics(named: Any) -> bool:
    return inspect.isclass(named) and any(
        base.__module__.startswith("torchmetrics") and base.__name__ == "Metric" for base in named.__mro__
    )


def _with_class_count(named: Any, arguments: Mapping[str, Any], classes: int | None) -> dict[str, Any]:
    parameters = inspect.signature(named).parameters
    wanted = [name for name in CLASS_COUNTS if name in parameters and name not in arguments]
    return dict(arguments) | (dict.fromkeys(wanted, classes) if classes is not None else {})


def _better(named: Any, higher_is_better: bool | None) -> bool:
    if higher_is_better is not None:
        return higher_is_better
    return getattr(named, "higher_is_better", True) is not False
