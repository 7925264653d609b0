"""Outputs of the optimized model beside those of the file as it is written, whole and kernel by kernel."""

import onnx_ir as ir

from ptq_cli.calibdata.dataset.rebatch import part_of
from ptq_cli.core.errors import PtqError
from ptq_cli.core.work.progress import ProgressCallback
from ptq_cli.models.files.stored import serialize
from ptq_cli.models.inputs.batch_axes import Axes, noted_axes
from ptq_cli.models.operators.pair_operators import QUANTIZE
from ptq_cli.pipeline.inspection.compared_samples import ComparedSamples
from ptq_cli.plan.target.rules import ONNXRUNTIME, Target
from ptq_cli.qdq.proof.carried_pairs import restored_by
from ptq_cli.qdq.read.pair_grids import grid_of
from ptq_cli.recipe.sections.runtime_section import RuntimeSettings
from ptq_cli.report.proof.kernel_differences import compare_kernels
from ptq_cli.report.proof.optimized_outputs import compare_optimized
from ptq_cli.report.proof.verification import KernelComparison, OutputComparison
from ptq_cli.runtime.engines.engine_registry import at_level, measuring_engine
from ptq_cli.runtime.turns import Batch

COMPARED_ALONE = 4
"""Samples that kernels are compared on alone: one that is wrong is wrong for many values of each."""


def compare_outputs(
    graph: ir.Model,
    samples: ComparedSamples,
    target: Target,
    settings: RuntimeSettings,
    threads: int,
    progress: ProgressCallback,
) -> OutputComparison | None:
    """Compare the outputs of the optimized model with those of the file as written; None without samples."""
    if not samples.batches:
        return None
    scales = _output_scales(graph, target)
    differences, count = compare_optimized(
        serialize(graph),
        samples.batches,
        scales,
        threads=threads,
        engine=at_level(measuring_engine(target), settings.accuracy_level),
        progress=progress,
    )
    return OutputComparison(samples.data, samples.count or count, differences)


def compare_each_kernel(
    graph: ir.Model,
    samples: ComparedSamples,
    target: Target,
    limit: float,
    threads: int,
    progress: ProgressCallback,
) -> KernelComparison | None:
    """Compare each kernel on a few samples, one at a time if the model takes any number of them."""
    if not samples.batches or target.runtime != ONNXRUNTIME:
        return None
    batches = (
        samples.batches[:COMPARED_ALONE] if samples.fixed else _single(samples.batches[0], noted_axes(graph))
    )
    try:
        return compare_kernels(
            graph, batches, _output_scales(graph, target), limit, threads=threads, progress=progress
        )
    except PtqError as error:
        return KernelComparison(samples=0, kernels=0, differences=(), limit=limit, fault=error.message)


def _single(batch: Batch, axes: Axes) -> list[Batch]:
    """Return the first samples of a batch, one by one; ``axes`` are those other than the first."""
    own = {name: axes.get(name, 0) if array.ndim else None for name, array in batch.items()}
    sizes = [batch[name].shape[axis] for name, axis in own.items() if axis is not None]
    return [
        {name: part_of(array, own[name], index, index + 1) for name, array in batch.items()}
        for index in range(min([*sizes, COMPARED_ALONE]) if sizes else 1)
    ]


def _output_scales(graph: ir.Model, target: Target) -> dict[str, float]:
    """Return the scale of each output that a DequantizeLinear, or a QuantizeLinear, gives."""
    scales = {}
    for value in graph.graph.outputs:
        producer = value.producer()
        if producer is not None and producer.op_type == QUANTIZE:
            scales[value.name or ""] = 1.0  # The integers themselves are the output.
        elif (restored := restored_by(value, target)) is not None:
            scale = grid_of(restored).scale
            if scale is not None:
                scales[value.name or ""] = float(scale.min())
    return scales
