"""A quantized model that ``ptq export`` wrote: which one, what it was made from, where its layers run."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from ptq_cli.amax.decide import check_amax_settings, resolve_method
from ptq_cli.collectors.artifact.calibration_file import Calibration, statistics_digest
from ptq_cli.core.documents.json_values import decode
from ptq_cli.core.errors import InputFileError, PtqError, ReportError, StaleCalibrationError
from ptq_cli.core.errors.error_text import first_line
from ptq_cli.core.read_files import require_file
from ptq_cli.models.files.stored import StoredModel, release
from ptq_cli.pipeline.calibration.source_size import source_bytes
from ptq_cli.pipeline.exporting.file_metadata import report_layers
from ptq_cli.pipeline.run.resolve import Resolved
from ptq_cli.pipeline.run.run_directory import RunDirectory
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import Target
from ptq_cli.plan.target.target_file import known_targets
from ptq_cli.qdq.metadata import (
    ACTIVATIONS,
    AMAX_METHOD,
    AMAX_PERCENTILE,
    FLOAT_SHA256,
    LAYERS,
    OVERRIDES,
    QUANTIZERS,
    RUNTIME_OPERATORS,
    STATISTICS_SHA256,
    TARGET,
    WEIGHT_AMAX,
    WEIGHTS,
)
from ptq_cli.recipe.encode import overrides_to_tables
from ptq_cli.recipe.locations import relative_location
from ptq_cli.recipe.recipe_layers import merge_layers, table_layer
from ptq_cli.recipe.schema import Recipe
from ptq_cli.report.document.report_document import AmaxSummary, LayerEntry, ModelEntry, ModelSummary


@dataclass(frozen=True)
class Pair:
    """The two models, serialized; the quantized one with the name of its file."""

    float_model: StoredModel
    quantized_model: StoredModel
    quantized_name: str


def quantized_path(run: RunDirectory, named: Path | None) -> Path:
    """Return the quantized model's file: the one that was named, or the run's own.

    Raises:
        InputFileError: the one that was named is missing.
        MissingStageError: nothing was exported.
    """
    if named is not None:
        return require_file(named, "quantized model")
    return run.require_stage(run.quantized_model, "ptq export")


def quantized_metadata(model: StoredModel, path: Path) -> Mapping[str, str]:
    """Return what a quantized model says of where it came from.

    Raises:
        InputFileError: it is not an ONNX file.
    """
    try:
        proto = onnx.load_model_from_string(model.content)
    except DecodeError as error:
        raise InputFileError(
            f"quantized model '{path}' is not an ONNX file, or is damaged", hint="run ptq export again"
        ) from error
    return {item.key: item.value for item in proto.metadata_props}


def require_origin(origin: Mapping[str, str], calibration: Calibration, path: Path) -> None:
    """Check that a quantized model was made from a calibration.

    Raises:
        InputFileError: it was not written by ``export``.
        StaleCalibrationError: it was made from another model or calibration.
    """
    if FLOAT_SHA256 not in origin:
        raise InputFileError(
            f"'{path}' was not written by ptq export", hint="pass a model that was, or no model"
        )
    if origin[FLOAT_SHA256] != calibration.provenance.model:
        raise StaleCalibrationError(
            f"'{path}' was not made from this run's float model", hint="run ptq export again"
        )
    # The report names the calibration; it must not name another one than the scales come from.
    if origin.get(STATISTICS_SHA256) != statistics_digest(calibration.statistics):
        raise StaleCalibrationError(
            f"'{path}' was made from an earlier calibration than this run's",
            hint="run ptq export again, or pass the model that was made from it: ptq evaluate FILE",
        )


def as_exported(resolved: Resolved, origin: Mapping[str, str], path: Path) -> Resolved:
    """Return the recipe with the target that a quantized model was exported for: ``export`` may take another.

    Raises:
        StaleCalibrationError: it was a target of a user's own, and the recipe names another.
    """
    allowed = origin.get(RUNTIME_OPERATORS) == "true"
    if allowed != resolved.target.runtime_operators:
        quantization = replace(resolved.recipe.quantization, runtime_operators=allowed)
        resolved = resolved.with_recipe(replace(resolved.recipe, quantization=quantization))
    noted = origin.get(TARGET)
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

    Args:
        recipe: of the run.
        origin: the quantized model's metadata.
        calibration: decides what ``auto`` means.
        name: of the quantized model's file.

    Raises:
        InputFileError: what the model says of itself is damaged.
    """
    amax = recipe.amax
    method = resolve_method(amax, has_histogram=calibration.provenance.method == "histogram")
    changes: dict[str, Any] = {"weight_method": origin.get(WEIGHT_AMAX, amax.weight_method)}
    if (noted := origin.get(AMAX_METHOD, method)) != method:
        changes["method"] = noted
    try:
        if AMAX_PERCENTILE in origin:
            changes["percentile"] = float(origin[AMAX_PERCENTILE])
        overrides = json.loads(origin.get(OVERRIDES, "[]"))
        if overrides != overrides_to_tables(recipe.override):
            table = table_layer({"override": overrides}, Path(), f"'{name}'")
            recipe = replace(recipe, override=merge_layers([table]).override)
        recipe = _with_quantizers_of(recipe, origin, name)
        found = replace(recipe, amax=replace(amax, **changes))
        check_amax_settings(found.amax)
    except (ValueError, RecursionError, PtqError) as error:
        reason = error.message if isinstance(error, PtqError) else first_line(error)
        raise InputFileError(
            f"'{name}' has damaged metadata: {reason}", hint="run ptq export again"
        ) from error
    return found


def _with_quantizers_of(recipe: Recipe, origin: Mapping[str, str], name: str) -> Recipe:
    """Return a recipe with a quantized model's own ``[weights]`` and ``[activations]``.

    Edge case:
        Files of earlier versions have no such settings: if they have other quantizers than their target's,
        the recipe is left as it is.

    Raises:
        PtqError, ValueError: the metadata is damaged.
    """
    if WEIGHTS not in origin and QUANTIZERS in origin:
        return recipe
    sections = {"weights": WEIGHTS, "activations": ACTIVATIONS}
    tables = {section: json.loads(origin.get(key, "{}")) for section, key in sections.items()}
    found = merge_layers([table_layer(tables, Path(), f"'{name}'")])
    return replace(recipe, weights=found.weights, activations=found.activations)


def model_summary(model: str | None, run: RunDirectory, pair: Pair, calibration: Calibration) -> ModelSummary:
    """Return the two models by file, hash and size.

    Args:
        model: the file that the float model was made from, if one is known.
        run: names the float model.
        pair: both.
        calibration: names the files that the float model was made from.
    """
    source = relative_location(model, Path.cwd()) if model else run.float_model.name
    return ModelSummary(
        source,
        _model_file(run.float_model.name, pair.float_model),
        _model_file(pair.quantized_name, pair.quantized_model),
        source_bytes(model, calibration.provenance.settings, run),
    )


def _model_file(name: str, model: StoredModel) -> ModelEntry:
    return ModelEntry(name, model.sha256, model.size)


def amax_summary(origin: Mapping[str, str], name: str) -> AmaxSummary:
    """Return how the ranges were decided, as the model says.

    Args:
        origin: the quantized model's metadata.
        name: of its file.

    Raises:
        InputFileError: what the model says of itself is damaged.
    """
    settings: dict[str, float] = {}
    if AMAX_PERCENTILE in origin:
        settings["percentile"] = _percentile(origin[AMAX_PERCENTILE], name)
    if OVERRIDES in origin:
        settings["overrides"] = len(_listed(origin[OVERRIDES], name))
    method, weights = origin.get(AMAX_METHOD, "unknown"), origin.get(WEIGHT_AMAX, "max")
    text = method if weights == "max" else f"{method}, weights by {weights}"
    if QUANTIZERS in origin:
        text += f"; {origin[QUANTIZERS]}"
    return AmaxSummary(text, settings)


def _percentile(text: str, name: str) -> float:
    try:
        percentile = float(text)
    except ValueError as error:
        raise _damaged(name, AMAX_PERCENTILE, error) from error
    if not 0 < percentile <= 100:
        raise _damaged(name, AMAX_PERCENTILE, ValueError(f"{text} is not between 0 and 100"))
    return percentile


def _listed(text: str, name: str) -> list[object]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damaged(name, OVERRIDES, error) from error
    if not isinstance(found, list):
        raise _damaged(name, OVERRIDES, ValueError("expected a list"))
    return found


def plan_of(model: StoredModel, target: Target) -> Plan:
    """Return what a target would quantize of a serialized model.

    Raises:
        NothingToQuantizeError: the target can quantize nothing.
    """
    graph = model.load()
    plan = make_plan(graph, target)
    release(graph)
    return plan


def evaluated_layers(plan: Plan, origin: Mapping[str, str], name: str) -> tuple[LayerEntry, ...]:
    """Return where each layer of a quantized model runs.

    Args:
        plan: of the float model, for the target that it was exported for.
        origin: the quantized model's metadata.
        name: of its file.

    Raises:
        InputFileError: what the model says of itself is damaged.
    """
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

    Args:
        origin: the quantized model's metadata.
        name: of its file.

    Raises:
        InputFileError: what the model says of itself is damaged.
    """
    if LAYERS not in origin:
        return {}
    try:
        found = decode(dict[str, list[str]], json.loads(origin[LAYERS]), LAYERS)
    except (ValueError, RecursionError, ReportError) as error:
        raise _damaged(name, LAYERS, error) from error
    return {layer: reason for reason, layers in found.items() for layer in layers}


def _damaged(name: str, key: str, error: Exception) -> InputFileError:
    return InputFileError(
        f"'{name}' has damaged metadata '{key}': {first_line(error)}", hint="run ptq export again"
    )
