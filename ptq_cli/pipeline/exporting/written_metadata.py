"""What the file of a quantized model says of itself: what it was made of, how, and what is unusual in it."""

import json
from collections.abc import Mapping

from ptq_cli.collectors.calibration_file import Calibration, statistics_digest
from ptq_cli.evaluation.document.report_document import LayerEntry
from ptq_cli.placement.placed_graph import Placement
from ptq_cli.placement.tensor_settings import TensorRecipe
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import Target
from ptq_cli.qdq import metadata
from ptq_cli.recipe.recipe_layers import overrides_to_tables, settings_to_table
from ptq_cli.recipe.sections import FLOAT16
from ptq_cli.recover.decided_model import DecidedModel
from ptq_cli.recover.recovery_effects import Recovery
from ptq_cli.setup.versions import library_versions


def write_metadata(
    made: DecidedModel,
    recipe: TensorRecipe,
    calibration: Calibration,
    recovery: Recovery | None,
    method: str,
    target: Target,
) -> None:
    """Write the metadata of a quantized model."""
    placement, found = made.placement, made.model.metadata_props
    if made.ranges is not None:
        found[metadata.RANGES] = made.ranges.metadata()
    if made.float_layers is not None:
        found[metadata.FLOAT_LAYERS] = made.float_layers.metadata()
    if recovery is not None:
        found[metadata.RECOVERY] = recovery.metadata()
    if placement.float_type == FLOAT16:
        found[metadata.FLOAT_TYPE] = FLOAT16
    found.update(_origin(recipe, calibration, method, target.name))
    found.update(_quantizer_settings(recipe, is_plain=placement.is_plain))
    found.update(_unusual(placement, made.plan))
    found.update({metadata.RUNTIME_OPERATORS: "true"} if target.runtime_operators else {})


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
        found[metadata.QUANTIZERS] = quantizer_line(placement.weight_counts, placement.activation_counts)
    usual = set(report_layers(placement.target_plan))
    reasons: dict[str, list[str]] = {}
    for layer in report_layers(plan):
        if layer not in usual:
            reasons.setdefault(layer.reason, []).append(layer.name)
    if reasons:
        found[metadata.LAYERS] = json.dumps(reasons)
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
        metadata.WEIGHTS: settings_to_table(recipe.weights),
        metadata.ACTIVATIONS: settings_to_table(recipe.activations),
    }
    if is_plain and not any(tables.values()):
        return {}
    return {key: json.dumps(table) for key, table in tables.items()}


def _origin(recipe: TensorRecipe, calibration: Calibration, method: str, target: str) -> dict[str, str]:
    origin = {
        metadata.VERSION: library_versions()["ptq-cli"],
        metadata.FLOAT_SHA256: calibration.provenance.model,
        metadata.STATISTICS_SHA256: statistics_digest(calibration.statistics),
        metadata.TARGET: target,
        metadata.AMAX_METHOD: method,
        metadata.WEIGHT_AMAX: recipe.amax.weight_method,
    }
    if method == "percentile":
        origin[metadata.AMAX_PERCENTILE] = repr(recipe.amax.percentile)
    if recipe.override:
        origin[metadata.OVERRIDES] = json.dumps(overrides_to_tables(recipe.override))
    return origin
