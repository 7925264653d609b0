"""The overlays of an analysis for Model Explorer as files: kernels and times are measured for them."""

from pathlib import Path

import onnx_ir as ir

from ptq_cli.analysis.overlays import overlay_path, overlays
from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.core.files import Content
from ptq_cli.evaluation.document.analysis_document import Analysis
from ptq_cli.latency.operator_times import node_times
from ptq_cli.models.loading.onnx_source import input_specs
from ptq_cli.plan.target.rules import Target
from ptq_cli.runtime.engine_registry import engine_of
from ptq_cli.setup.served_inputs import served_batch

SECONDS = 2.0
"""To time the operators."""


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
        measured = node_times(model, [first.inputs], threads=threads, seconds=SECONDS)
        times = {node.name: node.microseconds for node in measured if node.microseconds}
    texts = overlays(analysis, model.graph.name or "", kernels, times)
    return {overlay_path(file, quantity): text.encode() for quantity, text in texts.items()}
