"""One quantized tensor of an analysis."""

from dataclasses import dataclass
from typing import Annotated, Literal

from ptq_cli.core.documents import AtLeast

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
    """

    name: Annotated[str, "The value's name in the float model."]
    kind: Annotated[Kind, '"activation", "weight" or "bias".']
    layers: Annotated[
        tuple[str, ...], "Names of the nodes that read it as integers, in the order of the graph."
    ]
    op: Annotated[
        str,
        "Operator of the node that makes an activation, empty for the model's input; for a constant, of "
        "the first that reads it.",
    ]
    dtype: Annotated[str, "The integers, such as uint8."]
    shape: Annotated[
        tuple[int | None, ...], "Its sizes; null if one changes from batch to batch, as the samples do."
    ]
    axis: Annotated[int | None, "Along which scales are given; null for one scale."]
    low: Annotated[
        float | None,
        "The least value that the integers can stand for, over all scales; null without a scale.",
    ]
    high: Annotated[float | None, "The greatest."]
    scale_min: Annotated[float | None, "The smallest scale, null without one (values of a codebook)."]
    scale_max: Annotated[float | None, "The largest scale; the same as scale_min for one scale."]
    zero_point_min: Annotated[int | None, "The least zero point, null without a scale."]
    zero_point_max: Annotated[int | None, "The greatest zero point."]
    clipped: Annotated[float, "Share of values outside the range, 0 to 1."]
    range_used: Annotated[
        float | None,
        "Share of the range that the middle 99.9 % of values take, 0 to 1; null without a scale, and "
        "where a scale for each channel leaves no common range.",
    ]
    channel_imbalance: Annotated[
        float | None, "Largest magnitude of a channel, over the median channel's; null without channels."
    ]
    sqnr_accumulated_db: Annotated[
        float,
        "Against the float model, as the quantized model runs: errors of earlier layers are in it. A "
        "constant has none, so it is the isolated one. Decibels.",
    ]
    sqnr_isolated_db: Annotated[
        float, "Of the float model's values, quantized and dequantized, against themselves. Decibels."
    ]
    cause: Annotated[Cause, "Why it loses more than others, or empty."] = ""
    finding: Annotated[str, "The cause in words, with its numbers; empty without one."] = ""
    remedy: Annotated[str, "Flags to try, as they can be pasted behind ptq export; empty without one."] = ""


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """What one layer's quantization does to the output that the metric reads.

    A layer's quantization is that of its weight and bias, of what it reads, and of what it gives where that
    is quantized. Values are NaN if that model's output holds NaN or Inf.
    """

    metric_only_quantized: Annotated[float, "The metric of a model in which only this layer is quantized."]
    metric_left_float: Annotated[float, "The metric of the quantized model with only this layer left float."]
    drop_only_quantized: Annotated[
        float | None,
        "How much worse than the float model the first of them is; null for a metric that compares the "
        "two models, as an SQNR does.",
    ]
    drop_left_float: Annotated[
        float | None, "How much worse than the float model the second is; null likewise."
    ]
    sqnr_only_quantized_db: Annotated[
        float, "SQNR of the output where only this layer is quantized. Decibels."
    ]
    sqnr_left_float_db: Annotated[float, "SQNR of the output where only this layer is left float. Decibels."]
    rank: Annotated[Annotated[int, AtLeast(1)], "Place among the layers, 1 for the one that costs most."]
