"""A quantized model that ``ptq export`` wrote: which one, what it was made from, where its layers run."""

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
from ptq_cli.pipeline.exporting.written_metadata import report_layers
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import Target
from ptq_cli.plan.target.target_file import known_targets
from ptq_cli.qdq import metadata
from ptq_cli.recipe.check import check_recipe
from ptq_cli.recipe.locations import relative_location
from ptq_cli.recipe.recipe_layers import merge_layers, overrides_to_tables, table_layer
from ptq_cli.recipe.schema import Recipe
from ptq_cli.setup.resolve import Resolved
from ptq_cli.setup.run_directory import RunDirectory


@dataclass(frozen=True)
class Pair:
    """The two models, serialized; the quantized one with the name of its file."""

    float_model: StoredModel
    quantized_model: StoredModel
    quantized_name: str


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
    if metadata.FLOAT_SHA256 not in origin:
        raise InputFileError(
            f"'{path}' was not written by ptq export", hint="pass a model that was, or no model"
        )
    if origin[metadata.FLOAT_SHA256] != calibration.provenance.model:
        raise StaleCalibrationError(
            f"'{path}' was not made from this run's float model", hint="run ptq export again"
        )
    # The report names the calibration; it must not name another one than the scales come from.
    if origin.get(metadata.STATISTICS_SHA256) != statistics_digest(calibration.statistics):
        raise StaleCalibrationError(
            f"'{path}' was made from an earlier calibration than this run's",
            hint="run ptq export again, or pass the model that was made from it: ptq evaluate FILE",
        )


def as_exported(resolved: Resolved, origin: Mapping[str, str], path: Path) -> Resolved:
    """Return the recipe with the target that a model was exported for: ``export`` may take another."""
    allowed = origin.get(metadata.RUNTIME_OPERATORS) == "true"
    if allowed != resolved.target.runtime_operators:
        quantization = replace(resolved.recipe.quantization, runtime_operators=allowed)
        resolved = resolved.with_recipe(replace(resolved.recipe, quantization=quantization))
    noted = origin.get(metadata.TARGET)
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
    changes: dict[str, Any] = {"weight_method": origin.get(metadata.WEIGHT_AMAX, amax.weight_method)}
    if (noted := origin.get(metadata.AMAX_METHOD, method)) != method:
        changes["method"] = noted
    try:
        if metadata.AMAX_PERCENTILE in origin:
            changes["percentile"] = float(origin[metadata.AMAX_PERCENTILE])
        overrides = json.loads(origin.get(metadata.OVERRIDES, "[]"))
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
    if metadata.WEIGHTS not in origin and metadata.QUANTIZERS in origin:
        return recipe
    sections = {"weights": metadata.WEIGHTS, "activations": metadata.ACTIVATIONS}
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
    if metadata.AMAX_PERCENTILE in origin:
        settings["percentile"] = float(origin[metadata.AMAX_PERCENTILE])
    if metadata.OVERRIDES in origin:
        settings["overrides"] = len(json.loads(origin[metadata.OVERRIDES]))
    method, weights = origin.get(metadata.AMAX_METHOD, "unknown"), origin.get(metadata.WEIGHT_AMAX, "max")
    text = method if weights == "max" else f"{method}, weights by {weights}"
    if metadata.QUANTIZERS in origin:
        text += f"; {origin[metadata.QUANTIZERS]}"
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
    if metadata.LAYERS not in origin:
        return {}
    try:
        found = decode(dict[str, list[str]], json.loads(origin[metadata.LAYERS]), metadata.LAYERS)
    except (ValueError, RecursionError, ReportError) as error:
        raise _damaged(name, metadata.LAYERS, error) from error
    return {layer: reason for reason, layers in found.items() for layer in layers}


def _damaged(name: str, key: str, error: Exception) -> InputFileError:
    return InputFileError(
        f"'{name}' has damaged metadata '{key}': {first_line(error)}", hint="run ptq export again"
    )
