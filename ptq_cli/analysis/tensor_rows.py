"""Rows of the analysis for quantized activations, weights and biases: what their integers cost, and why."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ptq_cli.analysis.causes import (
    GOOD_DB,
    Finding,
    Use,
    activation_finding,
    tensor_not_finite,
    weight_finding,
)
from ptq_cli.analysis.judge import NoiseSums, channel_imbalance, range_used
from ptq_cli.analysis.measure_layers import Measured
from ptq_cli.core.arithmetic import FloatArray, QuantParameters
from ptq_cli.evaluation.bootstrap import Float64Array
from ptq_cli.evaluation.document.analysis_document import TensorAnalysis
from ptq_cli.models.graph_reading import every_node
from ptq_cli.models.pair_operators import RECURRENT
from ptq_cli.qdq.read.constant_values import ConstantValues, constant_values
from ptq_cli.qdq.read.twin_graphs import QuantizedConstant, TwinGraphs

LARGEST_HISTOGRAM = 1 << 16  # integers of more values have too fine steps to be what costs accuracy
HALF_OF_A_BIAS = 2**29  # steps: a weight's scale is widened until its bias has 2^30 at most
_WIDER = 1.01  # a scale this much above what the weight's largest value needs was widened
_BIAS = "int32"


@dataclass(frozen=True, kw_only=True)
class ConstantUse(Use):
    """How a constant uses its integers, the ends of its range, and the share of channels with a wider scale.

    The ends are None without a scale; a scale is wider than its values need for a large bias.
    """

    low: float | None = None
    high: float | None = None
    widened: float = 0.0


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
        is_bias = values.dtype == _BIAS
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
        kind="bias" if values.dtype == _BIAS else "weight",
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


def use_of(constant: ConstantValues, channel_axis: int | None) -> ConstantUse:
    """Use of the integers of a constant."""
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
    """Whether a bias is so large in steps that the weight's scale had to follow it."""
    return bias.integers is not None and bool((np.abs(bias.integers) >= HALF_OF_A_BIAS).any())


def _limits(constant: ConstantValues) -> tuple[int, int]:
    """Least and the greatest integer of a constant's format, as its integers show it.

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
    """Least 2^k - 1 that is not below a number."""
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
    wider = with_values & (scale.astype(np.float64) > _WIDER * needed)
    return float(np.count_nonzero(wider)) / max(1, np.size(needed))


def _output_channels(node: ir.Node, rank: int) -> int | None:
    is_transposed = node.attributes.get_int("transB", 0)
    axes = {"Conv": 0, "ConvTranspose": 1, "MatMul": rank - 1, "Gemm": 0 if is_transposed else 1}
    if node.op_type in RECURRENT:
        return 1
    return axes.get(node.op_type) if rank > 1 else None


def activation_rows(
    twins: TwinGraphs, measured: Measured, better: Callable[[str, QuantParameters], str], *, histograms: bool
) -> Iterator[TensorAnalysis]:
    """Yield a row for each activation pair.

    ``better`` returns which amax method would be better for a tensor; it is called only for bad ones.
    """
    makers = {
        value.name: node.op_type for node in every_node(twins.float_model.graph) for value in node.outputs
    }
    for name, pair in twins.pairs.items():
        sums, parameters = measured.quantizations[name], pair.parameters
        use = Use(
            sqnr_db=sums.sqnr_db,
            clip_share=sums.clip_share,
            clipped=sums.clipped / max(1, sums.count),
            used=range_used(sums.integers),
            imbalance=channel_imbalance(sums.channel_amax),
            levels=len(sums.integers),
            readers=twins.readers_of(pair),
            better=better(name, parameters) if sums.sqnr_db < GOOD_DB else "",
        )
        bad = measured.not_finite.get(name)
        found = (
            activation_finding(use, histograms=histograms)
            if bad is None
            else tensor_not_finite(bad.model, bad.sample)
        )
        yield _activation_row(name, makers.get(name, ""), parameters, measured, use, found)


def _activation_row(
    name: str, op: str, parameters: QuantParameters, measured: Measured, use: Use, found: Finding
) -> TensorAnalysis:
    scale, zero = float(parameters.scale), int(parameters.zero_point)
    return TensorAnalysis(
        name=name,
        kind="activation",
        layers=tuple(use.readers),
        op=op,
        dtype=parameters.format.name,
        shape=measured.shapes.get(name, ()),
        axis=None,
        low=(parameters.format.qmin - zero) * scale,
        high=(parameters.format.qmax - zero) * scale,
        scale_min=scale,
        scale_max=scale,
        zero_point_min=zero,
        zero_point_max=zero,
        clipped=use.clipped,
        range_used=use.used,
        channel_imbalance=use.imbalance,
        sqnr_accumulated_db=measured.noises[name].sqnr_db,
        sqnr_isolated_db=use.sqnr_db,
        cause=found.cause,
        finding=found.finding,
        remedy=found.remedy,
    )
