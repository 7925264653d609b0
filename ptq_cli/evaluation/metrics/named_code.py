"""Metrics that the user named: a class or a function from a file or a package. Nothing else is ever run."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ptq_cli.core.entry_points import load_entry_point
from ptq_cli.core.errors import MetricError, first_line
from ptq_cli.core.tensors import Array, format_shape
from ptq_cli.evaluation.document.measurement import Unit
from ptq_cli.evaluation.metrics.base import (
    LabelMetric,
    Labels,
    Recorded,
    Resampling,
    State,
    Targets,
)
from ptq_cli.evaluation.metrics.metric_registry import make_label_metric, plugin_metric
from ptq_cli.evaluation.metrics.spec import MetricSpec

# What code of the user's gave, or raised, as a number or as the error that says so.


def raised(name: str, error: Exception) -> MetricError:
    """Return the error that says what code of the user's raised."""
    return MetricError(
        f"{name} raised {type(error).__name__}: {first_line(error)}",
        hint="check that it accepts the output and the labels; --debug shows the traceback",
    )


def require_samples_first(name: str, output: Array, labels: Array) -> None:
    """Refuse an output whose samples lie on another axis, as those of a recurrent layer do."""
    count, shape = int(labels.shape[0] if labels.ndim else 1), output.shape
    if count > 1 and shape[0] != count and count in shape:
        raise MetricError(
            f"{name} has {count} labels, and {shape[0]} samples in an output of shape {format_shape(shape)}",
            hint=f"if its samples are on axis {shape.index(count)}, say so with the name of the output: "
            f"--set data.batch_axis.output={shape.index(count)}",
        )


def as_number(name: str, found: Array) -> float:
    """Return what a metric computed as a number."""
    if found.dtype.kind not in "biuf" or found.size != 1:
        raise MetricError(
            f"{name} returned {described(found)}, expected one number",
            hint="if the metric has a value for each class, ask for a mean, such as "
            "arguments = { average = 'macro' } under [[metric]]",
        )
    return float(found.reshape(()))


def described(found: Array) -> str:
    """Say what was given instead of what is wanted."""
    if found.dtype.kind not in "biuf":
        return str(found.reshape(-1)[:1])[:60]
    return "one number" if found.ndim == 0 else f"numbers of shape {format_shape(found.shape)}"


Make = Callable[[], LabelMetric]
NO_SHARES = "a class with update and compute does not tell what each sample contributes"
ONE_PROCESS = (
    "leave the metric out, evaluate in one process, or name a function that returns one number per sample"
)
CLASS_COUNTS = ("num_classes", "num_labels")
"""Arguments of torchmetrics that the output tells, where the recipe does not give them."""


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
