"""From what the user typed to values that are ready for use, checked before any work begins."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ptq_cli.amax.decide import check_amax_settings
from ptq_cli.amax.overrides import check_overrides
from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.calibdata.dataset.labels import LABEL_NAMES, rename_arrays
from ptq_cli.calibdata.open_dataset import open_dataset
from ptq_cli.collectors.collector_registry import make_collector
from ptq_cli.core.errors import EmptyDataError, GateError, RecipeValueError, UsageError
from ptq_cli.core.words import parse_size
from ptq_cli.evaluation.document.measurement import GENERATED
from ptq_cli.evaluation.limits import bounds_of, check_limits
from ptq_cli.evaluation.metrics.metric_registry import has_floor, is_comparison, require_metric
from ptq_cli.evaluation.metrics.spec import metric_specs, split_output
from ptq_cli.plan.target.rules import ONNXRUNTIME, QNN, Target
from ptq_cli.plan.target.target_file import known_targets, load_target
from ptq_cli.qdq.read.quantized_file import MetadataKey
from ptq_cli.recipe.assignments import settings_to_table
from ptq_cli.recipe.check import check_recipe
from ptq_cli.recipe.recipe_layers import (
    DEFAULT_PRESET,
    FOLDER_RECIPE,
    RecipeLayer,
    file_layer,
    merge_layers,
    preset_layer,
    table_layer,
)
from ptq_cli.recipe.recovery_rungs import settled_recovery
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections import (
    CalibrationSettings,
    EvaluationSettings,
    ImageSettings,
    QuantizationSettings,
    RuntimeSettings,
    TextSettings,
)
from ptq_cli.runtime.machine import Machine, parse_device, usable_cores


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How the data of a recipe is read.

    Attributes:
        rename: the model's input by the name of an array.
        fixed: inputs of the model that are constants; arrays of theirs are not read.
        required: the arrays in ``rename`` that the data must have.
    """

    image: ImageSettings = field(default_factory=ImageSettings)
    text: TextSettings = field(default_factory=TextSettings)
    rename: Mapping[str, str] = field(default_factory=dict)
    fixed: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()

    def open(self, source: str, samples: int | None = None) -> Dataset:
        """Open data, with its arrays under the names of the model's inputs."""
        dataset = open_dataset(source, self.image, self.text, samples=samples)
        return rename_arrays(dataset, self.rename, self.fixed, self.required)


def reading_of(recipe: Recipe) -> Reading:
    """How the data of a recipe is read."""
    fixed = frozenset(recipe.model.inputs)
    return Reading(image=recipe.image, text=recipe.text, rename=recipe.data.rename, fixed=fixed)


def open_data(
    settings: CalibrationSettings | EvaluationSettings, reading: Reading, section: str, flag: str
) -> Dataset:
    """Open the data that a section of the recipe names."""
    if settings.data is None:
        raise no_data(section, flag)
    return reading.open(settings.data, settings.samples)


def no_data(section: str, flag: str) -> EmptyDataError:
    """The error that says that a section of the recipe names no data."""
    return EmptyDataError(
        f"no {section} data was given",
        hint=f"{flag} data.npz, or data = 'data.npz' under [{section}] in ptq.toml",
    )


COMMAND_LINE = "the command line"


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the user asked of a verb.

    Attributes:
        settings: by flag name.
        folder: where ``ptq.toml`` is looked for, and where relative paths of flags start.
        given: all settings of an earlier command, which take the place of flags and recipe files.
    """

    settings: Mapping[str, Any]
    model: Path | None = None
    recipe_file: Path | None = None
    preset: str | None = None
    folder: Path = Path()
    given: RecipeLayer | None = None

    def flags(self) -> RecipeLayer:
        """The layer of the flags, with locations resolved."""
        return self._layer(by_user=False)

    def by_user(self) -> "Request":
        """The same, whose settings a user gave: the code that they name may run."""
        self._layer(by_user=True)
        return self

    def _layer(self, *, by_user: bool) -> RecipeLayer:
        table = settings_to_table(self.settings)
        if self.model is not None:
            table.setdefault("model", {})["path"] = str(self.model)
        return replace(table_layer(table, self.folder, COMMAND_LINE, by_user=by_user), adds=True)


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A request with what it means: the recipe, and what that names, each read or parsed once."""

    recipe: Recipe
    target: Target
    machine: Machine
    request: Request

    @property
    def reading(self) -> Reading:
        """How data is read."""
        return reading_of(self.recipe)

    def strict_reading(self, *others: Dataset, labels: bool = False) -> Reading:
        """How data is read that must have each array that ``data.rename`` of this command names.

        The ``others``, data that the command reads too, may have it instead.
        """
        with_labels = labels or bool(others)
        # A recipe's names may be for other data.
        renames = self.request.settings.get("rename", {})
        names = {name for name, new in renames.items() if with_labels or new not in LABEL_NAMES}
        required = names.difference(*(other.renamed for other in others))
        return replace(self.reading, required=frozenset(required))

    def with_recipe(self, recipe: Recipe) -> "Resolved":
        """The same with another recipe, whose target is read where it is another."""
        one, two = (
            (item.target, item.runtime_operators) for item in (recipe.quantization, self.recipe.quantization)
        )
        target = self.target if one == two else named_target(recipe.quantization)
        return replace(self, recipe=recipe, target=target)

    def with_settings(self, **settings: Any) -> "Resolved":
        """The same, asked for with further settings, which the recipe has already."""
        request = replace(self.request, settings={**self.request.settings, **settings})
        return replace(self, request=request)

    def for_target(self, name: str) -> "Resolved":
        """The same for the target of that name."""
        quantization = replace(self.recipe.quantization, target=name)
        return self.with_recipe(replace(self.recipe, quantization=quantization))


def named_target(settings: QuantizationSettings) -> Target:
    """The target that a recipe names, with what the recipe says otherwise than the target's table."""
    target = _load_target(settings.target)
    if settings.float_type not in target.float_types:
        raise RecipeValueError(
            f"float_type is {settings.float_type}, and the target '{target.name}' computes what is not "
            f"quantized in {' or '.join(target.float_types)}",
            hint=f"pass --set quantization.float_type={target.float_types[0]}, or choose a target such as "
            "tensorrt",
        )
    if settings.runtime_operators is None:
        return target
    if settings.runtime_operators and target.runtime != ONNXRUNTIME:
        raise RecipeValueError(
            f"runtime_operators is true, but ONNX Runtime does not run the target '{target.name}'",
            hint="choose the target ort-cpu, or leave 'quantization.runtime_operators' out",
        )
    return replace(target, runtime_operators=settings.runtime_operators)


def resolve(
    request: Request,
    *,
    earlier: RecipeLayer | None = None,
    otherwise: RecipeLayer | None = None,
    target: RecipeLayer | None = None,
) -> Resolved:
    """Resolve a request.

    The flags override ``earlier``, what the command line of an earlier stage of the same run set;
    ``otherwise`` takes the place of ``./ptq.toml`` and ``--recipe`` where there is neither. ``target`` is the
    calibration's, where no file and no preset that was asked for names another.
    """
    if request.given is not None:
        return _look_up(check_recipe(merge_layers([request.given])), request)
    preset = preset_layer(request.preset or DEFAULT_PRESET)
    files = _recipe_files(request)
    if otherwise is not None and not files:
        # What was resolved before holds all settings; a preset that is asked for now is meant to change some.
        files, preset = ([preset], otherwise) if request.preset else ([otherwise], preset)
    below = [target, preset] if request.preset else [preset, target]
    layers = [*below, *files, earlier, request.flags()]
    return _look_up(check_recipe(merge_layers([layer for layer in layers if layer is not None])), request)


def _load_target(name: str) -> Target:
    """A target, whose runtime is installed; an export for the HTP needs no simulator."""
    target = load_target(name)
    if target.runtime not in ("", ONNXRUNTIME, QNN):
        from ptq_cli.runtime.engine_registry import require_runtime

        require_runtime(target)
    return target


def _recipe_files(request: Request) -> list[RecipeLayer | None]:
    layers: list[RecipeLayer | None] = []
    folder_recipe = request.folder / FOLDER_RECIPE
    # A folder or a broken link of that name is an error, and no reason to go on without it.
    if os.path.lexists(folder_recipe):
        layers.append(file_layer(folder_recipe, FOLDER_RECIPE))
    if request.recipe_file is not None:
        layers.append(file_layer(request.recipe_file, by_user=True))
    return layers


def _look_up(recipe: Recipe, request: Request) -> Resolved:
    make_collector(recipe.calibration.method)
    check_amax_settings(recipe.amax)
    check_overrides(recipe.override)
    target = named_target(recipe.quantization)
    machine = _machine(recipe.runtime)
    own = {spec.name: spec.metric for spec in metric_specs(recipe.evaluation.metrics, recipe.metric)}
    check_limits(recipe.gate, {name: bounds_of(metric) for name, metric in own.items()})
    if recipe.gate.max_latency_ratio is not None and not recipe.evaluation.latency:
        raise GateError(
            "'gate.max_latency_ratio' limits the latency, and 'evaluation.latency' is false",
            hint="pass --set evaluation.latency=true, or leave the limit out",
        )
    # A limit on a further output is written sqnr_db[name]; which outputs there are, only the model knows.
    limited = (recipe.gate.max_drop, recipe.gate.max_ratio, recipe.gate.min, recipe.gate.max_regression)
    drops, ratios, minima, regressions = (
        [split_output(name)[0] for name in limits if name not in own] for limits in limited
    )
    drifts = [split_output(name)[0] for name in recipe.gate.max_drift if name not in own]
    for name in (*drops, *ratios, *minima, *regressions, *drifts):
        if name != GENERATED:
            require_metric(name, own)
    _check_sides({"drop": drops, "ratio": ratios}, minima)
    recipe = replace(recipe, recovery=settled_recovery(recipe))
    return Resolved(recipe=recipe, target=target, machine=machine, request=request)


def _machine(settings: RuntimeSettings) -> Machine:
    return Machine(
        device=parse_device(settings.device),
        threads=settings.threads or usable_cores(),
        memory=parse_size(settings.max_memory) if settings.max_memory else None,
    )


def _check_sides(changes: Mapping[str, Sequence[str]], minima: Sequence[str]) -> None:
    # The gate would say the same, but only after all the work.
    for change, name in ((change, name) for change, names in changes.items() for name in names):
        if is_comparison(name):
            hint = f"--min {name}=…" if has_floor(name) else "set a limit on sqnr_db or cosine instead"
            raise GateError(
                f"{name} has no {change}, because it compares the two models and has one value", hint=hint
            )
    for name in minima:
        if is_comparison(name) and not has_floor(name):
            raise GateError(
                f"a minimum of {name} would pass the worse model: it is better when smaller",
                hint="set a limit on sqnr_db or cosine instead, such as --min sqnr_db=25",
            )


def target_of(model: ir.Model, resolved: Resolved, *, named: bool) -> Target:
    """The target that was asked for, or else the one that the file says it was made for.

    ``named`` says that the user named it now, and not a preset or an earlier recipe.
    """
    noted = model.metadata_props.get(MetadataKey.TARGET)
    target = resolved.target
    if named or noted is None:
        return target
    if noted in known_targets():
        return resolved.for_target(noted).target
    if target.name != noted:
        raise UsageError(
            f"the model was made for target '{noted}', which is not one of ptq's own",
            hint=f"pass its file with --target FILE.toml; --target {target.name} asks for other rules",
        )
    return target
