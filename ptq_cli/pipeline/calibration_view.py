"""A run's calibration: what was measured of each tensor, and what every amax method makes of it."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

import onnx_ir as ir

from ptq_cli.amax.choice import Choice, ExpectedError, count_clipped, expected_error
from ptq_cli.amax.decide import Decision, resolve_method
from ptq_cli.amax.method_registry import AUTO_METHOD, METHODS
from ptq_cli.calibration.provenance import load_run
from ptq_cli.collectors.calibration_file import Calibration
from ptq_cli.collectors.tensor_statistics import NonFinite, TensorStatistics
from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.documents import HIDDEN
from ptq_cli.core.errors import MissingStatisticError, UnknownNameError
from ptq_cli.core.tensors import TensorSpec
from ptq_cli.core.words import did_you_mean, visible
from ptq_cli.evaluation.document.report_document import LayerEntry
from ptq_cli.models.graph_reading import every_node, every_value, is_nested, value_spec
from ptq_cli.placement.placed_graph import place
from ptq_cli.placement.planning import with_formats
from ptq_cli.placement.ranges import decide_activations, statistics_of
from ptq_cli.placement.tensor_settings import tensor_recipe
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.sites import ActivationSite, Plan
from ptq_cli.recipe.sections import AmaxSettings
from ptq_cli.setup.resolve import Request
from ptq_cli.setup.run_directory import RunDirectory


@dataclass(frozen=True, kw_only=True)
class MethodView:
    """What one method makes of a tensor."""

    DERIVED: ClassVar[tuple[str, ...]] = ("scale", "zero_point")

    method: Annotated[str, "Its name."]
    choice: Annotated[Choice, "The range it chooses."]
    parameters: Annotated[QuantParameters, HIDDEN]
    clipped: Annotated[
        tuple[int, int] | None,
        "Between which numbers lies how many values are beyond the range; None without a histogram.",
    ]
    error: Annotated[ExpectedError | None, "At the format's bits; null without a histogram."]

    @property
    def scale(self) -> float:
        """The scale that follows."""
        return float(self.parameters.scale)

    @property
    def zero_point(self) -> int:
        """The zero point that follows."""
        return int(self.parameters.zero_point)


@dataclass(frozen=True, kw_only=True)
class TensorView:
    """What was measured of a tensor."""

    DERIVED: ClassVar[tuple[str, ...]] = (
        "name",
        "format",
        "symmetric",
        "count",
        "zeros",
        "low",
        "high",
        "dead",
        "nonfinite",
        "percentile",
    )

    site: Annotated[ActivationSite, HIDDEN]
    statistics: Annotated[TensorStatistics, HIDDEN]
    settings: Annotated[AmaxSettings, HIDDEN]
    chosen: Annotated[str, "The name of the method that ptq export would use, or what it lacks to be used."]
    methods: Annotated[
        Mapping[str, MethodView],
        "What each method makes of it, by name; those that lack a statistic are left out.",
    ]

    @property
    def name(self) -> str:
        """The tensor's name."""
        return self.site.source

    @property
    def format(self) -> str:
        """The integer format that it becomes."""
        return self.site.format.name

    @property
    def symmetric(self) -> bool:
        """Whether its range is symmetric."""
        return self.site.symmetric

    @property
    def count(self) -> int:
        """How many values were seen."""
        return self.statistics.count

    @property
    def low(self) -> float:
        """The smallest finite value."""
        return self.statistics.low

    @property
    def high(self) -> float:
        """The largest finite value."""
        return self.statistics.high

    @property
    def dead(self) -> bool:
        """Whether it was 0 in every sample."""
        return self.statistics.dead

    @property
    def nonfinite(self) -> NonFinite:
        """How many values were not finite; the range leaves them out."""
        return self.statistics.nonfinite

    @property
    def percentile(self) -> float:
        """The percentile that the settings have for it."""
        return self.settings.percentile

    @property
    def zeros(self) -> int | None:
        """How many values were 0; None if a calibration kept only ranges."""
        return self.statistics.zeros if self.statistics.histogram is not None else None

    @property
    def clipped(self) -> tuple[int, int] | None:
        """Between which numbers lies how many values are clipped by the chosen method; None if unknown."""
        view = self.methods.get(self.chosen)
        return view.clipped if view is not None else None


@dataclass(frozen=True, kw_only=True)
class CalibrationView:
    """What ``ptq calibrate`` measured, and what each method makes of it."""

    run: Annotated[RunDirectory, "The run directory."]
    collector: Annotated[str, "What was kept: histogram or max."]
    samples: Annotated[int, "How many were seen."]
    target: Annotated[str, "Whose rules decide the formats."]
    model: Annotated[ir.Model, HIDDEN]
    plan: Annotated[Plan, HIDDEN]
    exported: Annotated[Plan, HIDDEN]
    tensors: Annotated[tuple[TensorView, ...], "Those that were asked for, in graph order."]
    methods: Annotated[
        tuple[str, ...],
        "The methods that are shown: those of ptq, and those of plug-ins that a setting names.",
    ]
    missing: Annotated[tuple[str, ...], "Those of them that need statistics which were not kept."]


Find = Callable[[ir.Model, Plan], Sequence[str]]


def measured(_model: ir.Model, plan: Plan) -> Sequence[str]:
    """Return every tensor that a range is decided for."""
    return plan.sources


def shown_name(name: str) -> str:
    r"""Return a name from a model on one line, with what is not printable replaced.

    Example:
        >>> shown_name("conv\x1b[2J\nx")
        'conv?[2J?x'
    """
    return visible(name, "?").replace("\n", "?")


def view_calibration(request: Request, run: RunDirectory, find: Find = measured) -> CalibrationView:
    """Return what was measured of every tensor; nothing is run and nothing written.

    ``find`` tells which tensors to look at, by the name of their source.
    """
    resolved, calibration, _, model = load_run(request, run)
    target = resolved.target
    plan = make_plan(model, target)
    placement = place(model, plan, target, tensor_recipe(resolved.recipe), calibration, may_be_empty=True)
    found = placement.settings
    plan, settings = with_formats(model, plan, found.activation_families, target), found.activations
    names = find(model, plan)
    tensors = view_tensors(plan, settings, calibration, names)
    stored = calibration.provenance
    methods = _methods_of(settings)
    missing = tuple(method for method in methods if any(method not in item.methods for item in tensors))
    return CalibrationView(
        run=run,
        collector=stored.method,
        samples=stored.samples,
        target=plan.target,
        model=model,
        plan=plan,
        exported=placement.plan,
        tensors=tensors,
        methods=methods,
        missing=missing,
    )


def view_tensors(
    plan: Plan, settings: Mapping[str, AmaxSettings], calibration: Calibration, names: Sequence[str]
) -> tuple[TensorView, ...]:
    """Return what was measured of these tensors, and what each method makes of them."""
    # A search over a large model takes a while; one tensor is decided in no time.
    part = replace(plan, activations={name: plan.activations[name] for name in names})
    decisions = _decide_by_each(part, settings, calibration)
    views = []
    for name in names:
        statistics = statistics_of(plan, name, calibration)
        views.append(
            TensorView(
                site=plan.activations[name],
                statistics=statistics,
                settings=settings[name],
                chosen=resolve_method(settings[name], has_histogram=statistics.histogram is not None),
                methods={key: _method_view(key, statistics, found[name]) for key, found in decisions.items()},
            )
        )
    return tuple(views)


def _decide_by_each(
    plan: Plan, settings: Mapping[str, AmaxSettings], calibration: Calibration
) -> dict[str, dict[str, Decision]]:
    found = {}
    for method in _methods_of(settings):
        every = {name: replace(item, method=method) for name, item in settings.items()}
        try:
            found[method] = decide_activations(plan, every, calibration)
        except MissingStatisticError:
            continue  # it is listed as missing
    return found


def _methods_of(settings: Mapping[str, AmaxSettings]) -> tuple[str, ...]:
    """Return the names of ptq's methods, and of the plug-ins that a setting names."""
    chosen = dict.fromkeys(item.method for item in settings.values() if item.method != AUTO_METHOD)
    return (*METHODS, *(name for name in chosen if name not in METHODS))


def _method_view(name: str, statistics: TensorStatistics, found: Decision) -> MethodView:
    choice, parameters, histogram = found.choice, found.parameters, statistics.histogram
    if histogram is not None:
        clipped = count_clipped(statistics, histogram, choice)
        error = expected_error(statistics, histogram, parameters)
        return MethodView(method=name, choice=choice, parameters=parameters, clipped=clipped, error=error)
    # Without a histogram there is one method, max, and nothing lies beyond its range.
    nothing = choice.low <= statistics.low and statistics.high <= choice.high
    return MethodView(
        method=name, choice=choice, parameters=parameters, clipped=(0, 0) if nothing else None, error=None
    )


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """One tensor, with where it comes from and who reads it."""

    DERIVED: ClassVar[tuple[str, ...]] = ("run", "missing")

    calibration: Annotated[CalibrationView, HIDDEN]
    tensor: Annotated[TensorView, "What was measured of it, and what each method makes of it."]
    spec: Annotated[TensorSpec, "Name, dtype and shape."]
    producer: Annotated[LayerEntry | None, "The node that computes it; None for an input of the model."]
    readers: Annotated[tuple[LayerEntry, ...], "The nodes that read it."]
    is_output: Annotated[bool, "Whether it is an output of the model, or of the nested graph that it is in."]
    nested: Annotated[bool, "Whether it is in a nested graph."]
    sharing: Annotated[
        tuple[str, ...],
        "Other tensors that take its parameters, because they hold the same values or must fit it.",
    ]
    plot: Annotated[Path | None, "The file of the picture; null if none was asked for."] = None

    @property
    def run(self) -> RunDirectory:
        """The run directory."""
        return self.calibration.run

    @property
    def missing(self) -> tuple[str, ...]:
        """Methods that need statistics which were not kept."""
        return self.calibration.missing


def explain_tensor(request: Request, run: RunDirectory, name: str) -> Explanation:
    """Return what is known of a tensor; nothing is run and nothing written.

    The name is that of the tensor, of one that takes its parameters from it, or of the layer that computes
    it; ``?`` may stand for a control character.
    """
    calibration = view_calibration(request, run, lambda model, plan: (_find(model, plan, name, run),))
    (tensor,) = calibration.tensors
    value = _values(calibration.model)[tensor.name]
    producer = value.producer()
    layers = {layer.name: layer for layer in calibration.exported.layers}

    def view(node: ir.Node) -> LayerEntry:
        layer = layers[node.name or ""]
        reason = "" if layer.quantized else layer.reason
        return LayerEntry(node.name or "", node.op_type, layer.quantized, reason)

    readers = dict.fromkeys(node for node, _ in value.uses())
    return Explanation(
        calibration=calibration,
        tensor=tensor,
        spec=value_spec(value),
        producer=view(producer) if producer is not None else None,
        readers=tuple(view(node) for node in readers),
        is_output=value.is_graph_output(),
        nested=is_nested(value),
        sharing=tuple(
            site.tensor
            for site in calibration.plan.activations.values()
            if site.source == tensor.name and site.tensor != tensor.name
        ),
    )


def _find(model: ir.Model, plan: Plan, name: str, run: RunDirectory) -> str:
    # In the order in which a name counts: the tensor itself, one that shares its parameters, the layer.
    meant: dict[str, str] = {}
    for site in plan.activations.values():
        meant.setdefault(site.tensor, site.source)
    for node in every_node(model.graph):
        for value in node.outputs:
            if value.name in meant and node.name:
                meant.setdefault(node.name, meant[value.name])
    for known in list(meant):
        meant.setdefault(shown_name(known), meant[known])
    if name in meant:
        return meant[name]
    listed = f"ptq inspect --run {shlex.quote(str(run.path))} lists"
    if name in _values(model) or name in {node.name for node in every_node(model.graph)}:
        raise UnknownNameError(
            f"'{name}' is in the model but was not measured, because it is not quantized for {plan.target}",
            hint=f"ptq inspect {shlex.quote(str(run.float_model))} says why; {listed} those that were "
            "measured",
        )
    raise UnknownNameError(
        f"no tensor '{name}' was calibrated{did_you_mean(name, list(meant))}", hint=f"{listed} the tensors"
    )


def _values(model: ir.Model) -> dict[str, ir.Value]:
    graph = model.graph
    values = [*every_value(graph), *graph.initializers.values()]
    return {value.name: value for value in values if value.name}
