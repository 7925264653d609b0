"""The analysis: where the quantized model loses accuracy, and what to try.

The dataclasses are the format, from which ``docs/analysis.schema.json`` is made.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from ptq_cli.core.documents import AtLeast, FileFormat
from ptq_cli.core.errors import AnalysisError
from ptq_cli.evaluation.document.gate_result import Timestamp
from ptq_cli.evaluation.document.noise_shares import NoiseShares
from ptq_cli.evaluation.document.report_document import ModelEntry
from ptq_cli.evaluation.document.tensor_rows import Cause, Sensitivity, TensorAnalysis

Order = Literal["sqnr", "metric"]
"""What layers are ranked by: the SQNR of the output, or the drop of the metric."""


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
    cause: Annotated[Cause, "Why it loses more than others, or empty."] = ""
    finding: Annotated[str, "The cause in words, with its numbers; empty without one."] = ""
    remedy: Annotated[str, "Options to try, which can be pasted after ptq export; empty without one."] = ""


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """Where a quantized model loses accuracy."""

    FORMAT: ClassVar[FileFormat] = FileFormat(
        name="ptq.analysis", version=1, noun="analysis", error=AnalysisError, hint="run ptq analyze again"
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
    order: Annotated[Order, "What the layers are ranked by."]
    cost: Annotated[Cost, "How much work it took."]
    tensors: Annotated[tuple[TensorAnalysis, ...], "Each quantized tensor, in the order of the graph."]
    layers: Annotated[tuple[LayerAnalysis, ...], "Each layer, in the order of the graph."]

    def ranked(self) -> tuple[LayerAnalysis, ...]:
        """Layers that have a sensitivity, the costliest first."""
        ranked = {layer.sensitivity.rank: layer for layer in self.layers if layer.sensitivity is not None}
        return tuple(ranked[rank] for rank in sorted(ranked))
