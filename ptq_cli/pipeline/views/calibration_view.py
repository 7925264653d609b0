"""``calibration show``: what was measured of each tensor, and what every amax method makes of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import onnx_ir as ir

from ptq_cli.amax.choice import Choice
from ptq_cli.amax.decide import Decision, decide_channels, resolve_method
from ptq_cli.amax.expected_error import ExpectedError, count_clipped, expected_error
from ptq_cli.amax.method_registry import AUTO, METHODS
from ptq_cli.collectors.artifact.calibration_file import Calibration
from ptq_cli.collectors.statistics.tensor_statistics import TensorStatistics
from ptq_cli.core.errors import MissingStatisticError
from ptq_cli.core.numbers.arithmetic import QuantParameters
from ptq_cli.pipeline.calibration.loaded_run import load_run
from ptq_cli.pipeline.exporting.placing.activation_formats import with_formats
from ptq_cli.pipeline.exporting.placing.placement import place
from ptq_cli.pipeline.exporting.ranges.tensor_ranges import decide_activations, statistics_of
from ptq_cli.pipeline.exporting.settings.tensor_settings import tensor_recipe
from ptq_cli.pipeline.run.resolve import Request
from ptq_cli.pipeline.run.run_directory import RunDirectory
from ptq_cli.pipeline.views.channel_view import ChannelsView
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.sites import ActivationSite, Plan
from ptq_cli.recipe.sections.calibration_sections import AmaxSettings


@dataclass(frozen=True, kw_only=True)
class MethodView:
    """What one method makes of a tensor.

    Attributes:
        method: its name.
        choice: the range it chooses.
        parameters: scale and zero point that follow.
        clipped: between which numbers lies how many values are beyond the range; None without a histogram.
        error: at the format's bits; None without a histogram.
    """

    method: str
    choice: Choice
    parameters: QuantParameters
    clipped: tuple[int, int] | None
    error: ExpectedError | None


@dataclass(frozen=True, kw_only=True)
class TensorView:
    """What was measured of a tensor.

    Attributes:
        site: name, format, and whether the range is symmetric.
        statistics: count, zeros, range, histogram.
        settings: what decides its range: the recipe's settings with their overrides.
        chosen: the name of the method that ``ptq export`` would use, or what it lacks to be used.
        methods: what each method makes of it, by name; those that lack a statistic are left out.
    """

    site: ActivationSite
    statistics: TensorStatistics
    settings: AmaxSettings
    chosen: str
    methods: Mapping[str, MethodView]

    @property
    def name(self) -> str:
        """The tensor's name."""
        return self.site.source

    @property
    def dead(self) -> bool:
        """Whether it was 0 in every sample."""
        return self.statistics.dead

    @cached_property
    def channels(self) -> ChannelsView | None:
        """What the chosen method makes of each channel, decided when it is asked for; None if not measured.

        Edge case:
            Where the chosen method lacks statistics, ``max`` decides.
        """
        channels = self.statistics.channels
        if channels is None:
            return None
        method = self.chosen if self.chosen in self.methods else "max"
        settings = replace(self.settings, method=method)
        found = decide_channels(channels, settings, self.site.format, symmetric=self.site.symmetric)
        return ChannelsView(channels, method, found)

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
    """What was measured.

    Attributes:
        run: the run directory.
        collector: what was kept: ``histogram`` or ``max``.
        samples: how many were seen.
        target: whose rules decide the formats.
        model: the float model.
        plan: what the target would quantize, which is what was measured.
        exported: what ``ptq export`` quantizes.
        tensors: those that were asked for, in graph order.
        methods: that are shown: those of ptq, and those of plug-ins that a setting names.
        missing: those of them that need statistics which were not kept.
    """

    run: RunDirectory
    collector: str
    samples: int
    target: str
    model: ir.Model
    plan: Plan
    exported: Plan
    tensors: tuple[TensorView, ...]
    methods: tuple[str, ...]
    missing: tuple[str, ...]


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
    return "".join(character if character.isprintable() else "?" for character in name)


def view_calibration(request: Request, run: RunDirectory, find: Find = measured) -> CalibrationView:
    """Return what was measured of every tensor; nothing is run and nothing written.

    Args:
        request: may change amax settings.
        run: the run directory.
        find: which tensors to look at, by the name of their source; all that were measured.

    Raises:
        MissingStageError: nothing was calibrated in the run directory.
        CalibrationFileError: the calibration is damaged.
        StaleCalibrationError: the model or a setting has changed since.
        RecipeValueError: an override matches nothing.
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
    """Return what was measured of these tensors, and what each method makes of them.

    Args:
        plan: what is quantized.
        settings: of each tensor that was measured.
        calibration: the statistics.
        names: of the tensors to look at, by their source.
    """
    # A search over a large model takes a while; one tensor is decided in no time.
    part = replace(plan, activations={name: plan.activations[name] for name in names})
    decisions = _decide_by_each(part, settings, calibration)
    return tuple(
        _view(
            plan.activations[name],
            statistics_of(plan, name, calibration),
            settings[name],
            {method: found[name] for method, found in decisions.items()},
        )
        for name in names
    )


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
    chosen = dict.fromkeys(item.method for item in settings.values() if item.method != AUTO)
    return (*METHODS, *(name for name in chosen if name not in METHODS))


def _view(
    site: ActivationSite,
    statistics: TensorStatistics,
    settings: AmaxSettings,
    decisions: Mapping[str, Decision],
) -> TensorView:
    chosen = resolve_method(settings, has_histogram=statistics.histogram is not None)
    methods = {name: _method_view(name, statistics, found) for name, found in decisions.items()}
    return TensorView(site=site, statistics=statistics, settings=settings, chosen=chosen, methods=methods)


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
