"""A row of the analysis for each layer, with its cause and its rank."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ptq_cli.amax.choice import expected_error
from ptq_cli.amax.decide import decide
from ptq_cli.amax.method_registry import METHODS
from ptq_cli.analysis.causes import (
    GOOD_DB,
    Finding,
    Use,
    layer_finding,
    layer_not_finite,
    weight_finding,
)
from ptq_cli.analysis.judge import NoiseSums, channel_imbalance, drop, range_used
from ptq_cli.analysis.measure_layers import LayerSubject, Measured, Variants
from ptq_cli.collectors.tensor_statistics import TensorStatistics
from ptq_cli.core.arithmetic import FloatArray, QuantParameters, fake_quantize
from ptq_cli.core.formats import INT8_NARROW
from ptq_cli.core.pair_sums import PairRule, widened_for_pairs
from ptq_cli.evaluation.bootstrap import Float64Array
from ptq_cli.evaluation.document.analysis_document import LayerAnalysis, MetricSummary, Order
from ptq_cli.evaluation.document.report_document import LayerEntry, Saturation
from ptq_cli.evaluation.document.tensor_rows import Sensitivity, TensorAnalysis
from ptq_cli.models.integer_operators import RECURRENT
from ptq_cli.plan.sites import WeightSite
from ptq_cli.qdq.read.constant_values import ConstantValues, constant_values
from ptq_cli.qdq.read.twin_graphs import QuantizedConstant, TwinGraphs
from ptq_cli.qdq.write.weight_quantizer import ScaledQuantizer, parameters_of
from ptq_cli.recipe.sections import AmaxSettings


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
    """Return a row for each layer of the plan; ``saturation`` is what can saturate on this processor."""
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


# How a weight or a bias uses its integers, and what their quantization costs.


LARGEST_HISTOGRAM = 1 << 16
"""Integers of more values have too fine steps to be what costs accuracy."""
HALF_OF_A_BIAS = 2**29
"""In steps. A weight's scale is widened until its bias has 2^30 at most (``qdq.write.weight_decisions``)."""
WIDER = 1.01
"""A scale this much above what the weight's largest value needs was widened."""


@dataclass(frozen=True, kw_only=True)
class ConstantUse(Use):
    """How a constant uses its integers, the ends of its range, and the share of channels with a wider scale.

    The ends are None without a scale; a scale is wider than its values need for a large bias.
    """

    low: float | None = None
    high: float | None = None
    widened: float = 0.0


def use_of(constant: ConstantValues, channel_axis: int | None) -> ConstantUse:
    """Return how a constant uses its integers."""
    noise = NoiseSums()
    noise.update(constant.floats[None], constant.values[None], 1)
    amax = _channel_amax(constant.floats, channel_axis if constant.axis is None else constant.axis)
    imbalance = channel_imbalance(amax)
    grid = constant.grid
    if constant.integers is None or grid is None or grid.scale is None or grid.zero_point is None:
        return ConstantUse(sqnr_db=noise.sqnr_db, imbalance=imbalance)
    scale, zeros = (constant.spread(array).astype(np.float64) for array in (grid.scale, grid.zero_point))
    least, greatest = _limits(constant)
    ends = (least - zeros) * scale, (greatest - zeros) * scale
    half = scale / 2
    outside = (constant.floats < ends[0] - half) | (constant.floats > ends[1] + half)
    levels = greatest - least + 1
    histogram = None
    if levels <= LARGEST_HISTOGRAM:
        histogram = np.bincount((constant.integers - least).reshape(-1), minlength=levels)
    return ConstantUse(
        sqnr_db=noise.sqnr_db,
        clipped=float(np.count_nonzero(outside)) / max(1, constant.floats.size),
        low=float(np.min(ends[0])),
        high=float(np.max(ends[1])),
        used=None if histogram is None else range_used(histogram),
        imbalance=imbalance,
        levels=levels,
        clip_share=_share_of_noise(constant, outside),
        widened=_widened(constant, amax, greatest),
    )


def overflowing(bias: ConstantValues) -> bool:
    """Return whether a bias is so large in steps that the weight's scale had to follow it."""
    return bias.integers is not None and bool((np.abs(bias.integers) >= HALF_OF_A_BIAS).any())


def _limits(constant: ConstantValues) -> tuple[int, int]:
    """Return the least and the greatest integer of a constant's format, as its integers show it.

    The file says how wide they are stored; of weights of 5 bits in bytes only the integers tell.
    """
    integers = constant.integers if constant.integers is not None else np.zeros(1)
    if constant.dtype == "int32":
        return -(2**31) + 1, 2**31 - 1
    if constant.dtype.startswith("u") and integers.min() >= 0:
        return 0, _ones(int(integers.max()))
    # A scale like 2^-5 may use -128, which has no counterpart.
    greatest = _ones(max(int(integers.max()), -int(integers.min()) - 1))
    return min(-greatest, int(integers.min())), greatest


def _ones(greatest: int) -> int:
    """Return the least 2^k - 1 that is not below a number."""
    return (1 << max(1, greatest.bit_length())) - 1


def _channel_amax(values: FloatArray, axis: int | None) -> Float64Array | None:
    if axis is None or not values.size or values.ndim <= axis:
        return None
    others = tuple(index for index in range(values.ndim) if index != axis)
    amax: Float64Array = np.abs(values).max(axis=others).astype(np.float64)
    return amax


def _share_of_noise(constant: ConstantValues, outside: npt.NDArray[np.bool_]) -> float:
    noise = (constant.floats.astype(np.float64) - constant.values) ** 2
    total = float(noise.sum())
    return float(noise[outside].sum()) / total if total else 0.0


def _widened(constant: ConstantValues, amax: Float64Array | None, greatest: int) -> float:
    scale = constant.scale
    if constant.grid is None or scale is None or amax is None or constant.grid.block_size or scale.ndim > 1:
        return 0.0
    needed = np.asarray(amax if scale.ndim else amax.max()) / greatest
    with_values = needed > 0
    wider = with_values & (scale.astype(np.float64) > WIDER * needed)
    return float(np.count_nonzero(wider)) / max(1, np.size(needed))


# A row of the analysis for each quantized constant: what its integers cost, and why.


BIAS = "int32"


def constant_rows(
    twins: TwinGraphs,
    better: Callable[[str, ConstantValues], str],
    bits: Mapping[str, int],
    recovered: Mapping[str, float],
) -> Iterator[TensorAnalysis]:
    """Yield a row for each quantized constant; one that several layers share has one row.

    ``better`` returns which amax method would be better for a weight; it is called only for bad ones.
    ``bits`` are those that evenly spaced weights were to have, by their names, and ``recovered`` is the SQNR
    of the outputs of the layers whose weights recovery chose, in dB.
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
        found = Finding()
        if not is_bias:
            large = (constant_values(twins, biased[name]) for name in readers if name in biased)
            found = weight_finding(
                # Channels with scales of their own may differ as much as they like.
                replace(
                    use,
                    imbalance=use.imbalance if values.axis is None else None,
                    readers=readers,
                    better=better(first.tensor, values) if use.sqnr_db < GOOD_DB else "",
                    bits=bits.get(first.tensor),
                    output_db=min((recovered[name] for name in readers if name in recovered), default=None),
                ),
                widened=use.widened if use.widened and any(map(overflowing, large)) else 0.0,
                quantizer=f"looked up: {values.dtype}",
            )
        yield _constant_row(first, values, use, readers, found)


def _constant_row(
    constant: QuantizedConstant,
    values: ConstantValues,
    use: ConstantUse,
    readers: tuple[str, ...],
    found: Finding,
) -> TensorAnalysis:
    zeros = values.grid.zero_point if values.grid is not None else None
    return TensorAnalysis(
        name=constant.tensor,
        kind="bias" if values.dtype == BIAS else "weight",
        layers=readers,
        op=constant.node.op_type,
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


def _output_channels(node: ir.Node, rank: int) -> int | None:
    """Return the axis of a weight's output channels."""
    is_transposed = node.attributes.get_int("transB", 0)
    axes = {"Conv": 0, "ConvTranspose": 1, "MatMul": rank - 1, "Gemm": 0 if is_transposed else 1}
    if node.op_type in RECURRENT:
        return 1
    return axes.get(node.op_type) if rank > 1 else None


# Whether another amax method gives a tensor a better range, computed before it is proposed.


GAIN_DB = 1.0
"""Least gain in dB for which another method is proposed."""


def better_activation_method(
    statistics: TensorStatistics | None, parameters: QuantParameters, settings: AmaxSettings
) -> str:
    """Return the amax method whose range the calibration expects to be best; empty if none gains enough.

    Example:
        >>> from ptq_cli.collectors.max_collector import HistogramCollector
        >>> from ptq_cli.core.arithmetic import parameters_from_range
        >>> from ptq_cli.core.formats import UINT8
        >>> collector = HistogramCollector()
        >>> collector.update(np.linspace(0.0, 1.0, 100_001, dtype=np.float32))
        True
        >>> too_wide = parameters_from_range(0.0, 9.0, UINT8)
        >>> better_activation_method(collector.statistics(), too_wide, AmaxSettings())
        'mse'
    """
    if statistics is None or statistics.histogram is None:
        return ""
    now = expected_error(statistics, statistics.histogram, parameters).sqnr_db
    symmetric = parameters.format.signed and int(parameters.zero_point) == 0
    expected = {}
    for method in METHODS:
        choice = decide(statistics, replace(settings, method=method), parameters.format, symmetric=symmetric)
        expected[method] = expected_error(statistics, statistics.histogram, choice.parameters).sqnr_db
    return _best(expected, now)


def better_weight_method(
    weight: ConstantValues, settings: AmaxSettings, pairs: PairRule | None = None
) -> str:
    """Return the amax method with the smallest error for a weight; empty if none gains enough, and in 4 bits.

    With ``pairs``, what two of its integers may add up to is limited for any method.

    Edge case:
        Empty for scales of blocks and for zero points, which these methods do not choose.
    """
    grid = weight.grid
    if grid is None or grid.scale is None or grid.block_size or weight.dtype != "int8":
        return ""
    if grid.zero_point is None or grid.zero_point.any():
        return ""
    site = WeightSite(tensor="weight", node="layer", input_index=1, format=INT8_NARROW, axis=weight.axis)
    expected = {}
    for method in METHODS:
        quantizer = ScaledQuantizer(replace(settings, weight_method=method))
        found = quantizer.choose(weight.floats, site).parameters
        if found is not None and pairs is not None:
            end = float(INT8_NARROW.qmax)
            scale = widened_for_pairs(found.scale, weight.floats, found.granularity, pairs, end)
            found = replace(found, scale=scale)
        if found is not None:
            expected[method] = _sqnr_db(weight, fake_quantize(weight.floats, found))
    # Integers that were chosen by more than their own error are judged by what their scale allows.
    nearest = fake_quantize(weight.floats, parameters_of(np.asarray(grid.scale, np.float32), site))
    return _best(expected, max(_sqnr_db(weight, weight.values), _sqnr_db(weight, nearest)))


def _sqnr_db(weight: ConstantValues, values: np.ndarray) -> float:
    sums = NoiseSums()
    sums.update(weight.floats[None], values[None], 1)
    return sums.sqnr_db


def _best(expected: Mapping[str, float], now: float) -> str:
    best = max(expected, key=expected.__getitem__, default="")
    return best if best and expected[best] >= now + GAIN_DB else ""
