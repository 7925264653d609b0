"""One quantized tensor of an analysis."""

from dataclasses import dataclass
from typing import Annotated, Literal

from ptq_cli.core.decoding import AtLeast

Kind = Literal["activation", "weight", "bias"]
Cause = Literal[
    "",
    "outliers",
    "clipping",
    "channel imbalance",
    "bias overflow",
    "not fused",
    "few steps",
    "not finite",
    "saturation",
]
"""Why a tensor or a layer loses more than others; empty if nothing stands out."""


@dataclass(frozen=True, kw_only=True)
class TensorAnalysis:
    """One quantized tensor: its parameters, how its values use them, and what they cost.

    Ratios are NaN if the tensor holds NaN or Inf, which its finding says.

    Attributes:
        name: the value's name in the float model.
        kind: ``"activation"``, ``"weight"`` or ``"bias"``.
        layers: names of the nodes that read it as integers, in the order of the graph.
        op: operator of the node that makes an activation, empty for the model's input; for a constant, of
            the first that reads it.
        dtype: the integers, such as ``uint8``.
        shape: its sizes; null if one changes from batch to batch, as the samples do.
        axis: along which scales are given; null for one scale.
        low: the least value that the integers can stand for, over all scales; null without a scale.
        high: the greatest.
        scale_min: the smallest scale, null without one (values of a codebook).
        scale_max: the largest scale; the same as ``scale_min`` for one scale.
        zero_point_min: the least zero point, null without a scale.
        zero_point_max: the greatest zero point.
        clipped: share of values outside the range, 0 to 1.
        range_used: share of the range that the middle 99.9 % of values take, 0 to 1; null without a scale,
            and where a scale for each channel leaves no common range.
        channel_imbalance: largest magnitude of a channel, over the median channel's; null without channels.
        sqnr_accumulated_db: against the float model, as the quantized model runs: errors of earlier layers
            are in it. A constant has none, so it is the isolated one. Decibels.
        sqnr_isolated_db: of the float model's values, quantized and dequantized, against themselves.
            Decibels.
        cause: why it loses more than others, or empty.
        finding: the cause in words, with its numbers; empty without one.
        remedy: flags to try, as they can be pasted behind ``ptq export``; empty without one.
    """

    name: str
    kind: Kind
    layers: tuple[str, ...]
    op: str
    dtype: str
    shape: tuple[int | None, ...]
    axis: int | None
    low: float | None
    high: float | None
    scale_min: float | None
    scale_max: float | None
    zero_point_min: int | None
    zero_point_max: int | None
    clipped: float
    range_used: float | None
    channel_imbalance: float | None
    sqnr_accumulated_db: float
    sqnr_isolated_db: float
    cause: Cause = ""
    finding: str = ""
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """What one layer's quantization does to the output that the metric reads.

    A layer's quantization is that of its weight and bias, of what it reads, and of what it gives where that
    is quantized. Values are NaN if that model's output holds NaN or Inf.

    Attributes:
        metric_only_quantized: the metric of a model in which only this layer is quantized.
        metric_left_float: the metric of the quantized model with only this layer left float.
        drop_only_quantized: how much worse than the float model the first of them is; null for a metric that
            compares the two models, as an SQNR does.
        drop_left_float: how much worse than the float model the second is; null likewise.
        sqnr_only_quantized_db: SQNR of the output where only this layer is quantized. Decibels.
        sqnr_left_float_db: SQNR of the output where only this layer is left float. Decibels.
        rank: place among the layers, 1 for the one that costs most.
    """

    metric_only_quantized: float
    metric_left_float: float
    drop_only_quantized: float | None
    drop_left_float: float | None
    sqnr_only_quantized_db: float
    sqnr_left_float_db: float
    rank: Annotated[int, AtLeast(1)]
