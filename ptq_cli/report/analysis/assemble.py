"""Turns measurements into the analysis: a row per tensor and per layer, with causes and ranks."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from ptq_cli.core.numbers.arithmetic import QuantParameters
from ptq_cli.models.operators.integer_operators import RECURRENT
from ptq_cli.qdq.read.constant_values import ConstantValues, constant_values
from ptq_cli.qdq.read.twin_graphs import QuantizedConstant, TwinGraphs
from ptq_cli.report.analysis.analysis_document import LayerAnalysis, MetricSummary, Order
from ptq_cli.report.analysis.causes import (
    GOOD_DB,
    Finding,
    Use,
    activation_finding,
    layer_finding,
    layer_not_finite,
    tensor_not_finite,
    weight_finding,
)
from ptq_cli.report.analysis.constant_costs import ConstantUse, overflowing, use_of
from ptq_cli.report.analysis.judge import drop
from ptq_cli.report.analysis.measure_layers import LayerSubject, Measured, Variants
from ptq_cli.report.analysis.sums import channel_imbalance, range_used
from ptq_cli.report.analysis.tensor_rows import Kind, Sensitivity, TensorAnalysis
from ptq_cli.report.document.report_document import LayerEntry

BIAS = "int32"


def activation_rows(
    twins: TwinGraphs, measured: Measured, better: Callable[[str, QuantParameters], str], *, histograms: bool
) -> Iterator[TensorAnalysis]:
    """Yield a row for each activation pair.

    Args:
        twins: both models.
        measured: what was measured on the samples.
        better: returns which amax method would be better for a tensor; called only for bad ones.
        histograms: whether the calibration kept them.
    """
    makers = {
        value.name: node.op_type for node in twins.float_model.graph.all_nodes() for value in node.outputs
    }
    for name, pair in twins.pairs.items():
        sums, parameters = measured.quantizations[name], pair.parameters
        scale, zero = float(parameters.scale), int(parameters.zero_point)
        readers = twins.readers_of(pair)
        imbalance, used = channel_imbalance(sums.channel_amax), range_used(sums.integers)
        clipped = sums.clipped / max(1, sums.count)
        method = better(name, parameters) if sums.sqnr_db < GOOD_DB else ""
        use = Use(
            sqnr_db=sums.sqnr_db,
            clip_share=sums.clip_share,
            clipped=clipped,
            used=used,
            imbalance=imbalance,
            levels=len(sums.integers),
            readers=readers,
            better=method,
        )
        bad = measured.not_finite.get(name)
        found = (
            activation_finding(use, histograms=histograms)
            if bad is None
            else tensor_not_finite(bad.model, bad.sample)
        )
        yield TensorAnalysis(
            name=name,
            kind="activation",
            layers=readers,
            op=makers.get(name, ""),
            dtype=parameters.format.name,
            shape=measured.shapes.get(name, ()),
            axis=None,
            low=(parameters.format.qmin - zero) * scale,
            high=(parameters.format.qmax - zero) * scale,
            scale_min=scale,
            scale_max=scale,
            zero_point_min=zero,
            zero_point_max=zero,
            clipped=clipped,
            range_used=used,
            channel_imbalance=imbalance,
            sqnr_accumulated_db=measured.noises[name].sqnr_db,
            sqnr_isolated_db=sums.sqnr_db,
            cause=found.cause,
            finding=found.finding,
            remedy=found.remedy,
        )


def constant_rows(twins: TwinGraphs, better: Callable[[ConstantValues], str]) -> Iterator[TensorAnalysis]:
    """Yield a row for each quantized constant; one that several layers share has one row.

    Args:
        twins: both models.
        better: returns which amax method would be better for a weight; called only for bad ones.
    """
    biases = (item for item in twins.constants if item.stored.dtype == ir.DataType.INT32)
    biased = {constant.node.name or "": constant for constant in biases}
    seen: dict[tuple[str, ir.Value], list[QuantizedConstant]] = {}
    for constant in twins.constants:
        # Layers that store one constant in the same way share the stored constant.
        seen.setdefault((constant.tensor, constant.stored), []).append(constant)
    for constants in seen.values():
        first = constants[0]
        values = constant_values(twins, first)
        is_bias = values.dtype == BIAS
        use = use_of(values, None if is_bias else _output_channels(first.node, values.floats.ndim))
        readers = tuple(constant.node.name or "" for constant in constants)
        overflow = any(
            overflowing(constant_values(twins, biased[name]))
            for name in readers
            if not is_bias and use.widened and name in biased
        )
        found = _constant_finding(values, use, readers, better, overflow=overflow)
        yield _constant_row(
            first.tensor, "bias" if is_bias else "weight", first.node.op_type, values, use, readers, found
        )


def _constant_finding(
    values: ConstantValues,
    use: ConstantUse,
    readers: Sequence[str],
    better: Callable[[ConstantValues], str],
    *,
    overflow: bool,
) -> Finding:
    if values.dtype == BIAS:
        return Finding()
    shared = use.imbalance if values.axis is None else None
    method = better(values) if use.sqnr_db < GOOD_DB else ""
    numbers = Use(
        sqnr_db=use.sqnr_db,
        clip_share=use.clip_share,
        clipped=use.clipped,
        used=use.used,
        imbalance=shared,
        levels=use.levels,
        readers=readers,
        better=method,
    )
    return weight_finding(
        numbers, widened=use.widened if overflow else 0.0, quantizer=f"looked up: {values.dtype}"
    )


def _constant_row(
    name: str,
    kind: Kind,
    op: str,
    values: ConstantValues,
    use: ConstantUse,
    readers: tuple[str, ...],
    found: Finding,
) -> TensorAnalysis:
    zeros = values.grid.zero_point if values.grid is not None else None
    return TensorAnalysis(
        name=name,
        kind=kind,
        layers=readers,
        op=op,
        dtype=values.dtype,
        shape=values.floats.shape,
        axis=values.axis,
        low=use.low,
        high=use.high,
        scale_min=float(np.min(values.scale)) if values.scale is not None else None,
        scale_max=float(np.max(values.scale)) if values.scale is not None else None,
        zero_point_min=int(zeros.min()) if zeros is not None else None,
        zero_point_max=int(zeros.max()) if zeros is not None else None,
        clipped=use.clipped,
        range_used=use.used,
        channel_imbalance=use.imbalance,
        sqnr_accumulated_db=use.sqnr_db,
        sqnr_isolated_db=use.sqnr_db,
        cause=found.cause,
        finding=found.finding,
        remedy=found.remedy,
    )


def layer_rows(
    layers: Sequence[LayerEntry],
    subject: LayerSubject,
    measured: Measured,
    tensors: Sequence[TensorAnalysis],
    work: Mapping[str, int | None],
    metric: MetricSummary | None,
    order: Order,
) -> tuple[LayerAnalysis, ...]:
    """Return a row for each layer of the plan."""
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
    """Return the finding for a layer whose form decides whether the output is finite; None otherwise."""
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
    """Return the findings for the tensors that a layer reads and computes."""
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


def _output_channels(node: ir.Node, rank: int) -> int | None:
    """Return the axis of a weight's output channels."""
    is_transposed = node.attributes.get_int("transB", 0)
    axes = {"Conv": 0, "ConvTranspose": 1, "MatMul": rank - 1, "Gemm": 0 if is_transposed else 1}
    if node.op_type in RECURRENT:
        return 1
    return axes.get(node.op_type) if rank > 1 else None
