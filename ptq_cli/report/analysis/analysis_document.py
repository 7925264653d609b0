"""The analysis: where the quantized model loses accuracy, and what to try. Format version 3.

The dataclasses are the format: ``docs/analysis.schema.json`` is generated from them. A change that adds or
changes a key must raise ``FORMAT_VERSION``.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from ptq_cli.core.decoding import AtLeast, decode, encode, strict_json
from ptq_cli.core.errors import AnalysisError, ReportError
from ptq_cli.core.read_files import read_file
from ptq_cli.report.analysis.tensor_rows import Cause, Sensitivity, TensorAnalysis
from ptq_cli.report.document.gate_result import Timestamp
from ptq_cli.report.document.report_document import ModelEntry

FORMAT = "ptq.analysis"
FORMAT_VERSION = 3
READABLE_VERSIONS = (1, 2, 3)
"""With the same keys: version 1 had no cause ``"not finite"``, and neither had ``"saturation"``."""
HINT = "run ptq analyze again"

Order = Literal["sqnr", "metric"]
"""What layers are ranked by: the SQNR of the output, or the drop of the metric."""


@dataclass(frozen=True)
class AnalyzedModels:
    """The two models.

    Attributes:
        source: the file that the user named.
        float_model: the ONNX model before quantization.
        quantized_model: the ONNX model after it.
    """

    source: str
    float_model: ModelEntry
    quantized_model: ModelEntry


@dataclass(frozen=True)
class Samples:
    """The samples that both models were run on.

    Attributes:
        source: the data as the user gave it.
        count: how many samples both models saw.
        data_digest: digest of those samples.
    """

    source: str
    count: Annotated[int, AtLeast(1)]
    data_digest: str


@dataclass(frozen=True, kw_only=True)
class MetricSummary:
    """The metric that the sensitivity is measured with, and its values for the two whole models.

    Attributes:
        name: its name, such as ``top1``.
        unit: ``share``, ``decibel`` or ``number``.
        needs_labels: whether it compares one model with labels, or two models with each other.
        higher_is_better: false for errors.
        float_value: value of the float model; null for a metric that compares two models.
        quantized_value: value of the quantized model; NaN if its output holds NaN or Inf.
        sqnr_db: SQNR of the quantized model's output that the metric reads; NaN likewise. Decibels.
    """

    name: str
    unit: str
    needs_labels: bool
    higher_is_better: bool
    float_value: float | None
    quantized_value: float
    sqnr_db: float


@dataclass(frozen=True)
class Cost:
    """The work that the analysis took.

    Attributes:
        variants: how many models with one layer changed were evaluated.
        forward_passes: all the work, in forward passes of one whole model over the samples, with layers
            weighted by their multiply-accumulates.
    """

    variants: Annotated[int, AtLeast(0)]
    forward_passes: float


@dataclass(frozen=True, kw_only=True)
class LayerAnalysis:
    """One layer: what it costs, and why.

    Attributes:
        name: the node's name.
        op: its operator, such as ``Conv``.
        integer: whether it computes in integers.
        reason: why it stays float, or what it is part of; empty for an integer operator of its own.
        multiply_accumulates: number for one sample; null if that is not known.
        output: name of the tensor that it computes; the two ratios below are about it.
        sqnr_accumulated_db: SQNR of its output with the whole model quantized; null if the output is not in
            both models. Decibels.
        sqnr_isolated_db: SQNR of its output with only the output quantized; null if it is not quantized.
        sensitivity: the effect of its quantization on the model's output; null for a layer without
            quantization, and if it was not requested.
        cause: why it loses more than others, or empty.
        finding: the cause in words, with its numbers; empty without one.
        remedy: options to try, which can be pasted after ``ptq export``; empty without one.
    """

    name: str
    op: str
    integer: bool
    reason: str
    multiply_accumulates: Annotated[int, AtLeast(0)] | None
    output: str
    sqnr_accumulated_db: float | None
    sqnr_isolated_db: float | None
    sensitivity: Sensitivity | None = None
    cause: Cause = ""
    finding: str = ""
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """Where a quantized model loses accuracy.

    Attributes:
        created: time in UTC; the only value that differs between two runs on the same input.
        versions: versions of ptq and of the libraries that it used, by name.
        models: the two files.
        target: the target whose rules placed the quantization.
        samples: the samples that it was measured on.
        metric: the metric of the sensitivity; null without sensitivities.
        order: what the layers are ranked by.
        cost: how much work it took.
        tensors: each quantized tensor, in the order of the graph.
        layers: each layer, in the order of the graph.
    """

    created: Timestamp
    versions: dict[str, str]
    models: AnalyzedModels
    target: str
    samples: Samples
    metric: MetricSummary | None
    order: Order
    cost: Cost
    tensors: tuple[TensorAnalysis, ...]
    layers: tuple[LayerAnalysis, ...]

    def ranked(self) -> tuple[LayerAnalysis, ...]:
        """Return the layers that have a sensitivity, the costliest first."""
        return tuple(
            layer
            for _, layer in sorted(
                ((layer.sensitivity.rank, layer) for layer in self.layers if layer.sensitivity is not None),
                key=lambda pair: pair[0],
            )
        )


def analysis_to_json(analysis: Analysis) -> str:
    """Return the analysis as JSON: keys in a fixed order, two spaces, ASCII, a newline at the end.

    Edge case:
        inf, -inf and NaN are the strings ``"inf"``, ``"-inf"`` and ``"nan"``. ASCII only, so that a name from
        a model cannot control the terminal that shows the file.
    """
    document = {"format": FORMAT, "format_version": FORMAT_VERSION, **encode(analysis)}
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def read_analysis(path: Path) -> Analysis:
    """Read and check an analysis.

    Raises:
        InputFileError: the file is missing or unreadable.
        AnalysisError: it is damaged, not an analysis, has a different format version, or an invalid value.
    """
    content = read_file(path, "analysis")
    try:
        return parse_analysis(content)
    except AnalysisError as error:
        raise AnalysisError(f"analysis '{path}': {error.message}", hint=error.hint) from error


def parse_analysis(content: bytes) -> Analysis:
    """Return the analysis that ``analysis_to_json`` wrote as ``content``.

    Raises:
        AnalysisError: it is damaged, not an analysis, has a different format version, or an invalid value.

    Example:
        >>> parse_analysis(b'{"format": "ptq.analysis", "format_version": 4}')
        Traceback (most recent call last):
        ...
        ptq_cli.core.errors.AnalysisError: PTQ-ANALYSIS-001: it has format version 4, this ptq reads 1 to 3
        hint: run ptq analyze again
    """
    try:
        value = strict_json(content)
    except (ValueError, RecursionError) as error:
        raise AnalysisError(f"it is not valid JSON: {error}", hint=HINT) from error
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise AnalysisError(
            f'it is JSON but not an analysis: it has no "format": "{FORMAT}"',
            hint="pass the analysis.json of a run",
        )
    version = value.get("format_version")
    if isinstance(version, bool) or version not in READABLE_VERSIONS:
        readable = f"{READABLE_VERSIONS[0]} to {FORMAT_VERSION}"
        raise AnalysisError(
            f"it has format version {str(version)[:40]}, this ptq reads {readable}", hint=HINT
        )
    body = {key: entry for key, entry in value.items() if key not in ("format", "format_version")}
    try:
        analysis: Analysis = decode(Analysis, body, "")
    except ReportError as error:
        raise AnalysisError(error.message, hint=HINT) from error
    return analysis


# An analysis as overlays of Model Explorer, Google's viewer of graphs: a value and a color for each node.
#
# Source:
#     ``node_data_builder.py`` of the package ai-edge-model-explorer 0.1.34: ``{graph: {results: {node:
#     {value, bgColor}}, name, gradient}}``. Its adapter for ONNX (model-explorer-onnx 0.4.2) calls graphs and
#     nodes as the file does.


SQNR, KERNEL, BITS, TIME = QUANTITIES = "SQNR (dB)", "kernel", "bits", "time (µs)"
WORST, MIDDLE, BEST = "#d73027", "#fee08b", "#1a9850"
"""From red to green by way of yellow: numbers stand beside them, so no color carries a meaning alone."""
RISING = ((0.0, WORST), (0.5, MIDDLE), (1.0, BEST))
FALLING = ((0.0, BEST), (0.5, MIDDLE), (1.0, WORST))
FLOAT_BITS = 32
COLORS = {"integer": "#91cf60", "float": "#fc8d59"}


def overlay_path(file: Path, quantity: str) -> Path:
    """Return where the overlay of a quantity is written: the file itself has the SQNR.

    Example:
        >>> [overlay_path(Path("sqnr.json"), quantity).name for quantity in (SQNR, TIME)]
        ['sqnr.json', 'sqnr.time.json']
    """
    return (
        file
        if quantity == SQNR
        else file.with_name(f"{file.stem}.{quantity.split(maxsplit=1)[0]}{file.suffix}")
    )


def overlays(
    analysis: Analysis, graph: str, kernels: Mapping[str, str], times: Mapping[str, float] | None
) -> dict[str, str]:
    """Return the overlays of a quantized model by quantity, each as JSON with a newline at the end.

    Args:
        analysis: of the model.
        graph: the name of its graph.
        kernels: ``"integer"`` or ``"float"`` by node.
        times: microseconds by node; None where they cannot be measured.

    Edge case:
        A layer that lost nothing has an infinite SQNR, which JSON has no number for: it has no value.
    """
    sqnr = {
        layer.name: layer.sqnr_accumulated_db
        for layer in analysis.layers
        if layer.sqnr_accumulated_db is not None and math.isfinite(layer.sqnr_accumulated_db)
    }
    found = {
        SQNR: _overlay(
            graph, SQNR, {name: {"value": round(value, 2)} for name, value in sqnr.items()}, RISING
        ),
        KERNEL: _overlay(
            graph, KERNEL, {name: {"value": kind, "bgColor": COLORS[kind]} for name, kind in kernels.items()}
        ),
        BITS: _overlay(
            graph, BITS, {name: {"value": bits} for name, bits in bits_of(analysis).items()}, FALLING
        ),
    }
    if times is not None:
        values = {name: {"value": round(time, 2)} for name, time in times.items()}
        found[TIME] = _overlay(graph, TIME, values, FALLING)
    return found


def bits_of(analysis: Analysis) -> dict[str, int]:
    """Return the bits of each layer's weight; without one, of the widest tensor that it reads as integers."""
    weights: dict[str, int] = {}
    read: dict[str, int] = {}
    for tensor in analysis.tensors:
        found = {"weight": weights, "activation": read}.get(tensor.kind, {})
        for name in tensor.layers:
            found[name] = max(found.get(name, 0), _bits(tensor.dtype))
    return {
        layer.name: weights.get(layer.name) or (read.get(layer.name) if layer.integer else None) or FLOAT_BITS
        for layer in analysis.layers
    }


def _bits(dtype: str) -> int:
    found = re.search(r"[0-9]+", dtype)  # uint8, int4, float8e4m3fn
    return int(found[0]) if found else FLOAT_BITS


def _overlay(
    graph: str, name: str, results: Mapping[str, Any], gradient: tuple[tuple[float, str], ...] = ()
) -> str:
    data: dict[str, Any] = {"results": results, "name": name}
    if gradient:
        data["gradient"] = [{"stop": stop, "bgColor": color} for stop, color in gradient]
    return json.dumps({graph: data}, indent=2, ensure_ascii=False) + "\n"
