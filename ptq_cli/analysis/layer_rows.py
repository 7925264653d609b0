"""A row of the analysis for each layer, with its cause and its rank."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ptq_cli.analysis.causes import Finding, layer_finding, layer_not_finite
from ptq_cli.analysis.judge import drop
from ptq_cli.analysis.measure_layers import LayerSubject, Measured, Variants
from ptq_cli.evaluation.document.analysis_document import LayerAnalysis, MetricSummary, Order
from ptq_cli.evaluation.document.report_document import LayerEntry, Saturation
from ptq_cli.evaluation.document.tensor_rows import Sensitivity, TensorAnalysis
from ptq_cli.models.integer_operators import RECURRENT


def layer_rows(
    layers: Sequence[LayerEntry],
    subject: LayerSubject,
    measured: Measured,
    tensors: Sequence[TensorAnalysis],
    work: Mapping[str, int | None],
    metric: MetricSummary | None,
    order: Order,
    saturation: Saturation,
) -> tuple[LayerAnalysis, ...]:
    """A row for each layer of the plan; ``saturation`` is what can saturate on this processor."""
    saturating = {layer.name: layer for layer in saturation.saturating}
    made = {name: stage.outputs[0] for stage in subject.staged.stages for name in stage.nodes}
    sensitivities = _ranked(measured, metric, order) if metric is not None else {}
    rows = []
    for layer in layers:
        output, sensitivity = made.get(layer.name, ""), sensitivities.get(layer.name)
        is_fused = layer.integer or layer.op in RECURRENT or layer.name not in subject.staged.layers
        found = _not_finite(layer.name, measured.judged.get(layer.name), measured) or layer_finding(
            layer.name,
            _findings_around(layer, output, tensors),
            not_fused="" if is_fused else layer.reason,
            gain_db=_gain_db(sensitivity, metric),
            saturating=saturating.get(layer.name),
        )
        noise, alone = measured.noises.get(output), measured.quantizations.get(output)
        rows.append(
            LayerAnalysis(
                name=layer.name,
                op=layer.op,
                integer=layer.integer,
                reason=layer.reason,
                multiply_accumulates=work.get(layer.name),
                output=output,
                sqnr_accumulated_db=noise.sqnr_db if noise is not None else None,
                sqnr_isolated_db=alone.sqnr_db if alone is not None else None,
                sensitivity=sensitivity,
                cause=found.cause,
                finding=found.finding,
                remedy=found.remedy,
            )
        )
    return tuple(rows)


def _not_finite(name: str, variants: Variants | None, measured: Measured) -> Finding | None:
    """Finding for a layer whose form decides whether the output is finite; None otherwise."""
    if variants is None:
        return None
    found = layer_not_finite(
        name,
        only_quantized=variants.only_quantized.not_finite,
        left_float=variants.left_float.not_finite,
        whole=measured.output.not_finite,
    )
    return found if found.cause else None


def _findings_around(
    layer: LayerEntry, output: str, tensors: Sequence[TensorAnalysis]
) -> list[tuple[float, str, Finding]]:
    """Findings for the tensors that a layer reads and computes."""
    return [
        (item.sqnr_isolated_db, item.name, Finding(item.cause, item.finding, item.remedy))
        for item in tensors
        if layer.name in item.layers or (item.name == output and layer.integer)
    ]


def _gain_db(sensitivity: Sensitivity | None, metric: MetricSummary | None) -> float | None:
    if sensitivity is None or metric is None:
        return None
    return sensitivity.sqnr_left_float_db - metric.sqnr_db


def _ranked(measured: Measured, metric: MetricSummary, order: Order) -> dict[str, Sensitivity]:
    found = {
        name: Sensitivity(
            metric_only_quantized=judged.only_quantized.value,
            metric_left_float=judged.left_float.value,
            drop_only_quantized=_drop(metric, judged.only_quantized.value),
            drop_left_float=_drop(metric, judged.left_float.value),
            sqnr_only_quantized_db=judged.only_quantized.sqnr_db,
            sqnr_left_float_db=judged.left_float.sqnr_db,
            rank=1,
        )
        for name, judged in measured.judged.items()
    }

    def worst_first(name: str) -> tuple[float, float]:
        item = found[name]
        if math.isnan(item.sqnr_only_quantized_db):  # Nothing is worse than an output that is not finite.
            return (-math.inf, -math.inf)
        worse = item.metric_only_quantized if metric.higher_is_better else -item.metric_only_quantized
        return (worse if order == "metric" else 0.0, item.sqnr_only_quantized_db)

    return {
        name: replace(found[name], rank=rank)
        for rank, name in enumerate(sorted(found, key=worst_first), start=1)
    }


def _drop(metric: MetricSummary, value: float) -> float | None:
    return drop(metric.float_value, value, higher_is_better=metric.higher_is_better)
