"""A quantized model that ``ptq export`` wrote: which one, what it was made from, and its metadata."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from ptq_cli.amax.decide import check_amax_settings, resolve_method
from ptq_cli.calibration.provenance import source_bytes
from ptq_cli.collectors.calibration_file import Calibration, statistics_digest
from ptq_cli.core.documents import decode
from ptq_cli.core.errors import InputFileError, PtqError, ReportError, StaleCalibrationError, first_line
from ptq_cli.core.read_files import require_file, require_name
from ptq_cli.evaluation.document.report_document import AmaxSummary, LayerEntry, ModelEntry, ModelSummary
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.models.files.storing import release
from ptq_cli.pipeline.statement import Statement
from ptq_cli.placement.placed_graph import Placement
from ptq_cli.placement.tensor_settings import TensorRecipe
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import Target
from ptq_cli.plan.target.target_file import known_targets
from ptq_cli.qdq.read.quantized_file import MetadataKey
from ptq_cli.recipe.check import check_recipe
from ptq_cli.recipe.locations import relative_location
from ptq_cli.recipe.recipe_layers import merge_layers, overrides_to_tables, settings_to_table, table_layer
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections import FLOAT16
from ptq_cli.recover.quantized_layer import DecidedModel
from ptq_cli.recover.recovery_effects import Recovery
from ptq_cli.setup.resolve import Resolved
from ptq_cli.setup.run_directory import RunDirectory, library_versions


def write_metadata(
    made: DecidedModel,
    recipe: TensorRecipe,
    calibration: Calibration,
    recovery: Recovery | None,
    method: str,
    target: Target,
) -> None:
    """Write the metadata of a quantized model, and that ptq produced it."""
    placement, found = made.placement, made.model.metadata_props
    made.model.producer_name, made.model.producer_version = "ptq", library_versions()["ptq-cli"]
    if made.ranges is not None:
        found[MetadataKey.RANGES] = made.ranges.metadata()
    if made.float_layers is not None:
        found[MetadataKey.FLOAT_LAYERS] = made.float_layers.metadata()
    if recovery is not None:
        found[MetadataKey.RECOVERY] = recovery.metadata()
    if placement.float_type == FLOAT16:
        found[MetadataKey.FLOAT_TYPE] = FLOAT16
    found.update(_origin(recipe, calibration, method, target.name))
    found.update(_quantizer_settings(recipe, is_plain=placement.is_plain))
    found.update(_unusual(placement, made.plan))
    found.update({MetadataKey.RUNTIME_OPERATORS: "true"} if target.runtime_operators else {})


def quantizer_line(weights: Mapping[str, int], activations: Mapping[str, int]) -> str:
    """Say which quantizers were used, each with its number of tensors where there are several.

    Example:
        >>> quantizer_line({"dorefa, 4 bits": 5, "scaled, 8 bits": 1}, {"scaled": 7})
        'weights: 5 dorefa, 4 bits; 1 scaled, 8 bits; activations: scaled'
    """
    parts = []
    for kind, counts in (("weights", weights), ("activations", activations)):
        names = [name if len(counts) == 1 else f"{count} {name}" for name, count in counts.items()]
        parts += [f"{kind}: {'; '.join(names)}"] if names else []
    return "; ".join(parts)


def _unusual(placement: Placement, plan: Plan) -> dict[str, str]:
    """Return quantizers that are not the target's, and reasons of layers that run elsewhere than usual."""
    found = {}
    if not placement.is_plain:
        found[MetadataKey.QUANTIZERS] = quantizer_line(placement.weight_counts, placement.activation_counts)
    usual = set(report_layers(placement.target_plan))
    reasons: dict[str, list[str]] = {}
    for layer in report_layers(plan):
        if layer not in usual:
            reasons.setdefault(layer.reason, []).append(layer.name)
    if reasons:
        found[MetadataKey.LAYERS] = json.dumps(reasons)
    return found


def report_layers(plan: Plan) -> tuple[LayerEntry, ...]:
    """Return where each layer of a plan runs, and the reasons of those that stay float."""
    return tuple(
        LayerEntry(layer.name, layer.op, layer.quantized, "" if layer.quantized else layer.reason)
        for layer in plan.layers
    )


def _quantizer_settings(recipe: TensorRecipe, *, is_plain: bool) -> dict[str, str]:
    """Return ``[weights]`` and ``[activations]``; nothing if the target's own quantizers are all there is."""
    tables = {
        MetadataKey.WEIGHTS: settings_to_table(recipe.weights),
        MetadataKey.ACTIVATIONS: settings_to_table(recipe.activations),
    }
    if is_plain and not any(tables.values()):
        return {}
    return {key: json.dumps(table) for key, table in tables.items()}


def _origin(recipe: TensorRecipe, calibration: Calibration, method: str, target: str) -> dict[str, str]:
    origin = {
        MetadataKey.VERSION: library_versions()["ptq-cli"],
        MetadataKey.FLOAT_SHA256: calibration.provenance.model,
        MetadataKey.STATISTICS_SHA256: statistics_digest(calibration.statistics),
        MetadataKey.TARGET: target,
        MetadataKey.AMAX_METHOD: method,
        MetadataKey.WEIGHT_AMAX: recipe.amax.weight_method,
    }
    if method == "percentile":
        origin[MetadataKey.AMAX_PERCENTILE] = repr(recipe.amax.percentile)
    if recipe.override:
        origin[MetadataKey.OVERRIDES] = json.dumps(overrides_to_tables(recipe.override))
    return origin


@dataclass(frozen=True)
class Pair:
    """The two models, serialized; the quantized one with the name of its file.

    Attributes:
        statement: of the quantized file, and where it is; None if there is none to add the report to.
    """

    float_model: StoredModel
    quantized_model: StoredModel
    quantized_name: str
    statement: tuple[Path, Statement] | None = None


def quantized_path(run: RunDirectory, named: Path | None) -> Path:
    """Return the quantized model's file: the one that was named, or the run's."""
    if named is not None:
        require_name(named)
        return require_file(named, "quantized model")
    return run.require_model()


def quantized_metadata(model: StoredModel, path: Path) -> Mapping[str, str]:
    """Return the metadata of a quantized model."""
    try:
        proto = onnx.load_model_from_string(model.content)
    except DecodeError as error:
        raise InputFileError(
            f"quantized model '{path}' is not an ONNX file, or is damaged", hint="run ptq export again"
        ) from error
    return {item.key: item.value for item in proto.metadata_props}


def require_origin(origin: Mapping[str, str], calibration: Calibration, path: Path) -> None:
    """Check that a quantized model was made from a calibration."""
    if MetadataKey.FLOAT_SHA256 not in origin:
        raise InputFileError(
            f"'{path}' was not written by ptq export", hint="pass a model that was, or no model"
        )
    if origin[MetadataKey.FLOAT_SHA256] != calibration.provenance.model:
        raise StaleCalibrationError(
            f"'{path}' was not made from this run's float model", hint="run ptq export again"
        )
    # The report names the calibration; it must not name another one than the scales come from.
    if origin.get(MetadataKey.STATISTICS_SHA256) != statistics_digest(calibration.statistics):
        raise StaleCalibrationError(
            f"'{path}' was made from an earlier calibration than this run's",
            hint="run ptq export again, or pass the model that was made from it: ptq evaluate FILE",
        )


def as_exported(resolved: Resolved, origin: Mapping[str, str], path: Path) -> Resolved:
    """Return the recipe with the target that a model was exported for: ``export`` may take another."""
    allowed = origin.get(MetadataKey.RUNTIME_OPERATORS) == "true"
    if allowed != resolved.target.runtime_operators:
        quantization = replace(resolved.recipe.quantization, runtime_operators=allowed)
        resolved = resolved.with_recipe(replace(resolved.recipe, quantization=quantization))
    noted = origin.get(MetadataKey.TARGET)
    if noted is None or noted == resolved.target.name:
        return resolved
    if noted in known_targets():
        return resolved.for_target(noted)
    named = resolved.recipe.quantization.target
    raise StaleCalibrationError(
        f"'{path}' was exported for target '{noted}', and the recipe names '{named}'",
        hint="run ptq export again, or set target under [quantization] in the recipe to its file",
    )


def with_ranges_of(recipe: Recipe, origin: Mapping[str, str], calibration: Calibration, name: str) -> Recipe:
    """Return a recipe with the methods, quantizers and overrides that a quantized model was exported with.

    ``export`` to a file of its own changes no recipe, so the file alone says them.
    """
    amax = recipe.amax
    method = resolve_method(amax, has_histogram=calibration.provenance.method == "histogram")
    changes: dict[str, Any] = {"weight_method": origin.get(MetadataKey.WEIGHT_AMAX, amax.weight_method)}
    if (noted := origin.get(MetadataKey.AMAX_METHOD, method)) != method:
        changes["method"] = noted
    try:
        if MetadataKey.AMAX_PERCENTILE in origin:
            changes["percentile"] = float(origin[MetadataKey.AMAX_PERCENTILE])
        overrides = json.loads(origin.get(MetadataKey.OVERRIDES, "[]"))
        if overrides != overrides_to_tables(recipe.override):
            table = table_layer({"override": overrides}, Path(), f"'{name}'")
            recipe = replace(recipe, override=merge_layers([table]).override)
        recipe = _with_quantizers_of(recipe, origin, name)
        found = replace(recipe, amax=replace(amax, **changes))
        check_amax_settings(found.amax)
        check_recipe(Recipe(amax=found.amax))  # Its percentile is between 0 and 100.
    except (ValueError, RecursionError, PtqError) as error:
        reason = error.message if isinstance(error, PtqError) else first_line(error)
        raise InputFileError(
            f"'{name}' has damaged metadata: {reason}", hint="run ptq export again"
        ) from error
    return found


def _with_quantizers_of(recipe: Recipe, origin: Mapping[str, str], name: str) -> Recipe:
    """Return a recipe with a quantized model's own ``[weights]`` and ``[activations]``.

    Files of earlier versions have no such settings: if they have other quantizers than their target's, the
    recipe is left as it is.
    """
    if MetadataKey.WEIGHTS not in origin and MetadataKey.QUANTIZERS in origin:
        return recipe
    sections = {"weights": MetadataKey.WEIGHTS, "activations": MetadataKey.ACTIVATIONS}
    tables = {section: json.loads(origin.get(key, "{}")) for section, key in sections.items()}
    found = merge_layers([table_layer(tables, Path(), f"'{name}'")])
    return replace(recipe, weights=found.weights, activations=found.activations)


def model_summary(model: str | None, run: RunDirectory, pair: Pair, calibration: Calibration) -> ModelSummary:
    """Return the two models by file, hash and size."""
    source = relative_location(model, Path.cwd()) if model else run.float_model.name
    return ModelSummary(
        source,
        _model_file(run.float_model.name, pair.float_model),
        _model_file(pair.quantized_name, pair.quantized_model),
        source_bytes(model, calibration.provenance.settings, run),
    )


def _model_file(name: str, model: StoredModel) -> ModelEntry:
    return ModelEntry(name, model.sha256, model.size)


def amax_summary(origin: Mapping[str, str]) -> AmaxSummary:
    """Return the method of ranges in a model's metadata, which ``with_ranges_of`` checks."""
    settings: dict[str, float] = {}
    if MetadataKey.AMAX_PERCENTILE in origin:
        settings["percentile"] = float(origin[MetadataKey.AMAX_PERCENTILE])
    if MetadataKey.OVERRIDES in origin:
        settings["overrides"] = len(json.loads(origin[MetadataKey.OVERRIDES]))
    method, weights = (
        origin.get(MetadataKey.AMAX_METHOD, "unknown"),
        origin.get(MetadataKey.WEIGHT_AMAX, "max"),
    )
    text = method if weights == "max" else f"{method}, weights by {weights}"
    if MetadataKey.QUANTIZERS in origin:
        text += f"; {origin[MetadataKey.QUANTIZERS]}"
    return AmaxSummary(text, settings)


def plan_of(model: StoredModel, target: Target) -> Plan:
    """Plan of a target for a serialized model."""
    graph = model.load()
    plan = make_plan(graph, target)
    release(graph)
    return plan


def evaluated_layers(plan: Plan, origin: Mapping[str, str], name: str) -> tuple[LayerEntry, ...]:
    """Return where each layer of a quantized model runs."""
    # Which quantizers it was exported with, the recipe at hand need not say.
    reasons = unusual_layers(origin, name)
    return tuple(
        LayerEntry(layer.name, layer.op, not reasons[layer.name], reasons[layer.name])
        if layer.name in reasons
        else layer
        for layer in report_layers(plan)
    )


def unusual_layers(origin: Mapping[str, str], name: str) -> dict[str, str]:
    """Return the layers that a quantized model computes otherwise than its target alone would have it.

    Each comes with the reason why it is float, which is empty for an integer layer.
    """
    if MetadataKey.LAYERS not in origin:
        return {}
    try:
        found = decode(dict[str, list[str]], json.loads(origin[MetadataKey.LAYERS]), MetadataKey.LAYERS)
    except (ValueError, RecursionError, ReportError) as error:
        raise _damaged(name, MetadataKey.LAYERS, error) from error
    return {layer: reason for reason, layers in found.items() for layer in layers}


def _damaged(name: str, key: str, error: Exception) -> InputFileError:
    return InputFileError(
        f"'{name}' has damaged metadata '{key}': {first_line(error)}", hint="run ptq export again"
    )
