"""An analysis as overlays of Model Explorer, Google's viewer of graphs, and their files.

Source:
    ``node_data_builder.py`` of the package ai-edge-model-explorer 0.1.34: ``{graph: {results: {node: {value,
    bgColor}}, name, gradient}}``. Its adapter for ONNX (model-explorer-onnx 0.4.2) calls graphs and nodes as
    the file does.
"""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.core.files import Content
from ptq_cli.evaluation.document.analysis_document import Analysis
from ptq_cli.latency.operator_times import node_times
from ptq_cli.models.loading.onnx_source import input_specs
from ptq_cli.plan.target.rules import Target
from ptq_cli.runtime.engine_registry import engine_of
from ptq_cli.setup.served_inputs import served_batch

_SQNR, _KERNEL, _BITS, TIME = QUANTITIES = "SQNR (dB)", "kernel", "bits", "time (µs)"
# From red to green by way of yellow: numbers stand beside them, so no color carries a meaning alone.
WORST, _MIDDLE, _BEST = "#d73027", "#fee08b", "#1a9850"
Gradient = tuple[tuple[float, str], ...]
RISING = ((0.0, WORST), (0.5, _MIDDLE), (1.0, _BEST))
FALLING = ((0.0, _BEST), (0.5, _MIDDLE), (1.0, WORST))
FLOAT_BITS = 32
_COLORS = {"integer": "#91cf60", "float": "#fc8d59"}


def overlay_path(file: Path, quantity: str) -> Path:
    """File of the overlay of a quantity; the file itself has the SQNR.

    Example:
        >>> [overlay_path(Path("sqnr.json"), quantity).name for quantity in (_SQNR, TIME)]
        ['sqnr.json', 'sqnr.time.json']
    """
    if quantity == _SQNR:
        return file
    return file.with_name(f"{file.stem}.{quantity.split(maxsplit=1)[0]}{file.suffix}")


def overlays(
    analysis: Analysis, graph: str, kernels: Mapping[str, str], times: Mapping[str, float] | None
) -> dict[str, str]:
    """Overlays of a quantized model by quantity, each as JSON with a newline at the end.

    ``kernels`` is ``"integer"`` or ``"float"`` by node, ``times`` microseconds, None where they cannot be
    measured.

    Edge case: A layer that lost nothing has an infinite SQNR, which JSON has no number for: it has no value.
    """
    sqnr = {
        layer.name: {"value": round(layer.sqnr_accumulated_db, 2)}
        for layer in analysis.layers
        if layer.sqnr_accumulated_db is not None and math.isfinite(layer.sqnr_accumulated_db)
    }
    found: dict[str, tuple[Mapping[str, Any], Gradient]] = {
        _SQNR: (sqnr, RISING),
        _KERNEL: ({name: {"value": kind, "bgColor": _COLORS[kind]} for name, kind in kernels.items()}, ()),
        _BITS: ({name: {"value": bits} for name, bits in bits_of(analysis).items()}, FALLING),
    }
    if times is not None:
        found[TIME] = ({name: {"value": round(time, 2)} for name, time in times.items()}, FALLING)
    return {name: _overlay(graph, name, *overlay) for name, overlay in found.items()}


def bits_of(analysis: Analysis) -> dict[str, int]:
    """Bits of each layer's weight; without one, of the widest tensor that it reads as integers."""
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


def _overlay(graph: str, name: str, results: Mapping[str, Any], gradient: Gradient) -> str:
    data: dict[str, Any] = {"results": results, "name": name}
    if gradient:
        data["gradient"] = [{"stop": stop, "bgColor": color} for stop, color in gradient]
    return json.dumps({graph: data}, indent=2) + "\n"


_SECONDS = 2.0  # To time the operators


def overlay_files(
    file: Path, analysis: Analysis, model: ir.Model, target: Target, dataset: Dataset, *, threads: int
) -> dict[Path, Content]:
    """Return the overlays of a quantized model, by their files."""
    engine = engine_of(target)
    found = engine.find_kernels(model) if engine is not None else {}
    kernels = {name: kernel.placement for name, kernel in found.items() if kernel.placement != "gone"}
    times = None
    if engine is not None and engine.has_profiler:
        batch = served_batch(input_specs(model), 1)
        first = next(iter(dataset.batches(batch)))
        measured = node_times(model, [first.inputs], threads=threads, seconds=_SECONDS)
        times = {node.name: node.microseconds for node in measured if node.microseconds}
    texts = overlays(analysis, model.graph.name or "", kernels, times)
    return {overlay_path(file, quantity): text.encode() for quantity, text in texts.items()}
