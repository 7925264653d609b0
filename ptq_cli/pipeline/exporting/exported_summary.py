"""What the metadata of a quantized model say of it for a report: its ranges, its layers, what is unusual."""

import json
from collections.abc import Mapping
from pathlib import Path

from ptq_cli.collectors.artifact.calibration_file import Calibration
from ptq_cli.core.documents.json_values import decode
from ptq_cli.core.errors import InputFileError, ReportError
from ptq_cli.core.errors.error_text import first_line
from ptq_cli.models.files.stored import StoredModel, release
from ptq_cli.pipeline.calibration.source_size import source_bytes
from ptq_cli.pipeline.exporting.exported_file import Pair
from ptq_cli.pipeline.exporting.file_metadata import report_layers
from ptq_cli.pipeline.run.run_directory import RunDirectory
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import Target
from ptq_cli.qdq.metadata import AMAX_METHOD, AMAX_PERCENTILE, LAYERS, OVERRIDES, QUANTIZERS, WEIGHT_AMAX
from ptq_cli.recipe.locations import relative_location
from ptq_cli.report.document.report_document import AmaxSummary, LayerEntry, ModelEntry, ModelSummary


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
