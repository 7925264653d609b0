"""The analysis: where the quantized model loses accuracy, its tensors, shares of noise, and what to try.

The dataclasses are the format, from which ``docs/analysis.schema.json`` is made.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from ptq_cli.core.documents import AtLeast, FileFormat
from ptq_cli.core.errors import AnalysisError
from ptq_cli.evaluation.document.gate_result import Timestamp
from ptq_cli.evaluation.document.report_document import ModelEntry
from ptq_cli.recipe.declaration import RANGES, ROUND

_Kind = Literal["activation", "weight", "bias"]
# Why a tensor or a layer loses more than others; empty if nothing stands out.
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


@dataclass(frozen=True, kw_only=True)
class TensorAnalysis:
    """One quantized tensor: its parameters, how its values use them, and what they cost.

    Ratios are NaN if the tensor holds NaN or Inf, which its finding says.
    """

    name: Annotated[str, "The value's name in the float model."]
    kind: Annotated[_Kind, '"activation", "weight" or "bias".']
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


_LEAST_GAIN_DB = 0.5  # what a command is named for


@dataclass(frozen=True)
class NoiseShare:
    """A model of which a share is quantized, compared with the float model."""

    sqnr_db: Annotated[
        float, "SQNR of the output that the metric reads; NaN if it holds NaN or Inf. Decibels."
    ]
    metric: Annotated[
        float | None, "Value of the analysis' metric; null if it has none, and if that is the SQNR."
    ]


@dataclass(frozen=True, kw_only=True)
class NoiseShares:
    """The quantized model, and what is lost by its weights alone and by its activations alone."""

    weights: Annotated[
        NoiseShare | None,
        "Quantized weights and biases with float activations: the most that better activations can reach; "
        "null if no weight is quantized, or the constants have more than 2 GB.",
    ]
    activations: Annotated[
        NoiseShare | None,
        "Quantized activations with float weights and biases: the most that better weights can reach; null "
        "if no activation is quantized, if layers quantize them at each run, or the constants have more "
        "than 2 GB.",
    ]
    both: Annotated[NoiseShare, "The quantized model as it is."]
    advice: Annotated[
        tuple[str, ...], "What can be won by better weights and by better activations, with commands."
    ]


def noise_shares(
    weights: NoiseShare | None,
    activations: NoiseShare | None,
    both: NoiseShare,
    *,
    recovered: bool,
    ranges: bool,
    wide: str,
    why: str,
) -> NoiseShares:
    """Shares with advice for a model whose weights and ranges recovery may have chosen.

    ``wide`` is an integer format of 16 bits that the target computes activations in, ``why`` the reason why
    there is no share of the weights or of the activations; both may be empty.

    Example:
        >>> shares = [NoiseShare(sqnr_db, None) for sqnr_db in (25.0, 17.25, 17.0)]
        >>> found = noise_shares(*shares, recovered=True, ranges=True, wide="uint16", why="")
        >>> found.advice[0]
        'better weights can win at most 0.2 dB'
        >>> found.advice[1].partition(": ")[2]
        'try ptq export --set activations.dtype=uint16 or ptq tune, which leaves layers in float'
    """
    advice = [why] if why else []
    if activations is not None:
        better = "" if recovered else f"ptq export --set recovery.rungs={ROUND}"
        advice.append(_bound("better weights", activations, both, better))
    if activations is not None and weights is not None:
        commands = [
            *([] if ranges else [f"ptq export --set recovery.rungs={RANGES}"]),
            *([f"ptq export --set activations.dtype={wide}"] if wide else []),
            "ptq tune, which leaves layers in float",
        ]
        advice.append(_bound("better activations", weights, both, " or ".join(commands)))
    return NoiseShares(weights=weights, activations=activations, both=both, advice=tuple(advice))


def _bound(better: str, others: NoiseShare, both: NoiseShare, commands: str) -> str:
    """Say what something better can win at most: what is lost then is lost by the ``others`` alone."""
    if math.isnan(both.sqnr_db) or math.isnan(others.sqnr_db):
        return f"what {better} can win is not known, because an output holds NaN or Inf"
    gain = 0.0 if others.sqnr_db == both.sqnr_db else max(0.0, others.sqnr_db - both.sqnr_db)
    if not math.isfinite(gain):
        return f"{better} can win all that is lost"
    commands = f": try {commands}" if commands and gain >= _LEAST_GAIN_DB else ""
    return f"{better} can win at most {gain:.1f} dB{commands}"


# What layers are ranked by: the SQNR of the output, or the drop of the metric.
RankedBy = Literal["sqnr", "metric"]


@dataclass(frozen=True)
class AnalyzedModels:
    """The two models."""

    source: Annotated[str, "The file that the user named."]
    float_model: Annotated[ModelEntry, "The ONNX model before quantization."]
    quantized_model: Annotated[ModelEntry, "The ONNX model after it."]


@dataclass(frozen=True)
class Samples:
    """The samples that both models were run on."""

    source: Annotated[str, "The data as the user gave it."]
    count: Annotated[Annotated[int, AtLeast(1)], "How many samples both models saw."]
    data_digest: Annotated[str, "Digest of those samples."]


@dataclass(frozen=True, kw_only=True)
class MetricSummary:
    """The metric that the sensitivity is measured with, and its values for the two whole models."""

    name: Annotated[str, "Its name, such as top1."]
    unit: Annotated[str, "Share, decibel or number."]
    needs_labels: Annotated[bool, "Whether it compares one model with labels, or two models with each other."]
    higher_is_better: Annotated[bool, "False for errors."]
    float_value: Annotated[
        float | None, "Value of the float model; null for a metric that compares two models."
    ]
    quantized_value: Annotated[float, "Value of the quantized model; NaN if its output holds NaN or Inf."]
    sqnr_db: Annotated[
        float, "SQNR of the quantized model's output that the metric reads; NaN likewise. Decibels."
    ]


@dataclass(frozen=True)
class Cost:
    """The work that the analysis took."""

    variants: Annotated[Annotated[int, AtLeast(0)], "How many models with one layer changed were evaluated."]
    forward_passes: Annotated[
        float,
        "All the work, in forward passes of one whole model over the samples, with layers weighted by "
        "their multiply-accumulates.",
    ]


@dataclass(frozen=True, kw_only=True)
class LayerAnalysis:
    """One layer: what it costs, and why."""

    name: Annotated[str, "The node's name."]
    op: Annotated[str, "Its operator, such as Conv."]
    integer: Annotated[bool, "Whether it computes in integers."]
    reason: Annotated[
        str, "Why it stays float, or what it is part of; empty for an integer operator of its own."
    ]
    multiply_accumulates: Annotated[
        Annotated[int, AtLeast(0)] | None, "Number for one sample; null if that is not known."
    ]
    output: Annotated[str, "Name of the tensor that it computes; the two ratios below are about it."]
    sqnr_accumulated_db: Annotated[
        float | None,
        "SQNR of its output with the whole model quantized; null if the output is not in both models. "
        "Decibels.",
    ]
    sqnr_isolated_db: Annotated[
        float | None, "SQNR of its output with only the output quantized; null if it is not quantized."
    ]
    sensitivity: Annotated[
        Sensitivity | None,
        "The effect of its quantization on the model's output; null for a layer without quantization, and "
        "if it was not requested.",
    ] = None
    float_time: Annotated[
        float | None,
        "Share of its time that the quantized model is expected to take more with this layer in float, by "
        "what the default places layers by; negative if it takes less, null if that is not known.",
    ] = None
    cause: Annotated[Cause, "Why it loses more than others, or empty."] = ""
    finding: Annotated[str, "The cause in words, with its numbers; empty without one."] = ""
    remedy: Annotated[str, "Options to try, which can be pasted after ptq export; empty without one."] = ""


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """Where a quantized model loses accuracy."""

    FORMAT: ClassVar[FileFormat] = FileFormat(
        name="ptq.analysis", version=2, noun="analysis", error=AnalysisError, hint="run ptq analyze again"
    )

    created: Annotated[
        Timestamp, "Time in UTC; the only value that differs between two runs on the same input."
    ]
    versions: Annotated[dict[str, str], "Versions of ptq and of the libraries that it used, by name."]
    models: Annotated[AnalyzedModels, "The two files."]
    target: Annotated[str, "The target whose rules placed the quantization."]
    samples: Annotated[Samples, "The samples that it was measured on."]
    metric: Annotated[MetricSummary | None, "The metric of the sensitivity; null without sensitivities."]
    shares: Annotated[NoiseShares, "What the weights and the activations cost, each by itself."]
    order: Annotated[RankedBy, "What the layers are ranked by."]
    cost: Annotated[Cost, "How much work it took."]
    tensors: Annotated[tuple[TensorAnalysis, ...], "Each quantized tensor, in the order of the graph."]
    layers: Annotated[tuple[LayerAnalysis, ...], "Each layer, in the order of the graph."]

    def ranked(self) -> tuple[LayerAnalysis, ...]:
        """Layers that have a sensitivity, the costliest first."""
        ranked = {layer.sensitivity.rank: layer for layer in self.layers if layer.sensitivity is not None}
        return tuple(ranked[rank] for rank in sorted(ranked))
