"""Optimized model beside the file as written, on samples: outputs, and each kernel alone."""

import math
from contextlib import closing
from dataclasses import dataclass, replace

import onnx_ir as ir

from ptq_cli.calibdata.bind import bind_inputs
from ptq_cli.calibdata.dataset.batches import part_of
from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.core.errors import PtqError, WrongKernelError
from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.evaluation.proof.graph_differences import CLEAR_DB, STAGE, compare_kernels, compare_optimized
from ptq_cli.evaluation.proof.saturation import saturation_here
from ptq_cli.evaluation.proof.verification import (
    KERNEL_STEPS,
    KernelComparison,
    KernelDifference,
    OutputComparison,
)
from ptq_cli.models.batch_axes import Axes, noted_axes
from ptq_cli.models.files.stored import StoredModel, serialize
from ptq_cli.models.loading.onnx_source import input_specs
from ptq_cli.models.pair_operators import QUANTIZE
from ptq_cli.pipeline.evaluation.compared_samples import ComparedSamples
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import RUNTIME_TITLES, Target
from ptq_cli.qdq.proof.carried_pairs import restored_by
from ptq_cli.qdq.read.pair_grids import grid_of
from ptq_cli.qdq.read.quantized_file import with_types
from ptq_cli.recipe.sections import RuntimeSettings
from ptq_cli.runtime.engine import Engine
from ptq_cli.runtime.engine_registry import at_level, engine_alone, measuring_engine
from ptq_cli.runtime.openvino import OPEN_VINO
from ptq_cli.runtime.timing import Inputs
from ptq_cli.setup.resolve import Resolved
from ptq_cli.setup.served_inputs import MADE_UP, made_up_batches, own_batch_size

COMPARED_ALONE = 4  # samples of each kernel: one that is wrong is wrong for many values of each


@dataclass(frozen=True)
class Execution:
    """Target, settings and threads with which its files are run here."""

    target: Target
    settings: RuntimeSettings
    threads: int

    @property
    def engine_alone(self) -> Engine | None:
        """The engine that runs single kernels; None if there is none here."""
        return engine_alone(self.target, self.settings.engine)


def compare_outputs(
    graph: ir.Model, samples: ComparedSamples, execution: Execution, progress: ProgressCallback
) -> OutputComparison | None:
    """Compare the outputs of the optimized model with those of the file as written; None without samples."""
    if not samples.batches:
        return None
    settings = execution.settings
    engine = measuring_engine(execution.target, settings.engine)
    differences, count = compare_optimized(
        serialize(graph),
        samples.batches,
        _output_scales(graph, execution.target),
        threads=execution.threads,
        engine=at_level(engine, settings.accuracy_level),
        progress=progress,
    )
    return OutputComparison(samples.data, samples.count or count, differences)


def compare_each_kernel(
    graph: ir.Model,
    samples: ComparedSamples,
    execution: Execution,
    limit: float,
    progress: ProgressCallback,
) -> KernelComparison | None:
    """Compare each kernel on a few samples, one at a time if the model takes any number of them."""
    engine = execution.engine_alone
    if not samples.batches or engine is None:
        return None
    batches = (
        samples.batches[:COMPARED_ALONE]
        if samples.fixed
        else single_samples(samples.batches[0], noted_axes(graph), COMPARED_ALONE)
    )
    scales = _output_scales(graph, execution.target)
    try:
        found = compare_kernels(
            graph, batches, scales, threads=execution.threads, engine=engine, progress=progress
        )
    except PtqError as error:
        return KernelComparison(samples=0, kernels=0, differences=(), limit=limit, fault=error.message)
    return replace(found, limit=limit)


def right_together(alone: KernelComparison, outputs: OutputComparison | None) -> KernelComparison:
    """Return the comparison with what the outputs of the whole model say of kernels that are wrong alone."""
    differences = outputs.differences if outputs is not None else ()
    is_right = bool(differences) and all(item.sqnr_db >= CLEAR_DB for item in differences)
    return replace(alone, right_together=is_right)


def require_right_kernels(
    stored: StoredModel, plan: Plan, resolved: Resolved, dataset: Dataset | None, progress: ProgressCallback
) -> None:
    """Refuse a model whose integer kernels compute something else than it says, on samples or made-up inputs.

    Sums that may saturate on this processor alone do not count.
    """
    settings, target = resolved.recipe.runtime, resolved.target
    execution = Execution(target, settings, resolved.machine.threads)
    if execution.engine_alone is None or not plan.activations:
        return
    graph = with_types(stored.load())
    samples = ComparedSamples(data=MADE_UP, batches=(), fixed=None, shapes={})
    try:
        samples = _few_samples(graph, resolved, dataset)
        found = compare_each_kernel(graph, samples, execution, KERNEL_STEPS, progress)
        fault = found.fault if found is not None else ""
    except PtqError as error:
        found, fault = None, error.message
    if fault:
        progress(Progress(STAGE, 0, None, f"the kernels were not checked: {fault}"))
    if found is not None and found.wrong and execution.engine_alone is OPEN_VINO:
        found = right_together(found, compare_outputs(graph, samples, execution, silent))
    wrong = found.wrong if found is not None else ()
    saturating = {layer.name for layer in saturation_here(graph, target).saturating} if wrong else set()
    layers = {layer.name for layer in plan.layers if layer.quantized and layer.name not in saturating}
    for item in wrong:
        if item.node in layers or (math.isinf(item.steps) and samples.data != MADE_UP):
            raise _wrong_kernel(item, RUNTIME_TITLES[settings.engine or target.runtime])


def _wrong_kernel(item: KernelDifference, title: str) -> WrongKernelError:
    if math.isinf(item.steps):
        return WrongKernelError(
            f"{title} gives another shape than ONNX, or NaN, at {item.op} '{item.node}'",
            hint="choose another target, or another padding if the operator has one",
        )
    return WrongKernelError(
        f"{title} computes {item.op} '{item.node}' {item.steps:.3g} steps of 8 bits off what the quantized "
        "model says",
        hint=f"leave it in float with --exclude '{item.node}'",
    )


def _few_samples(graph: ir.Model, resolved: Resolved, dataset: Dataset | None) -> ComparedSamples:
    inputs = input_specs(graph)
    fixed = own_batch_size(inputs)
    size, shapes = fixed or COMPARED_ALONE, resolved.recipe.model.input_shape
    if dataset is None or not dataset.is_resumable:
        made_up = made_up_batches(graph, size, 1, shapes)
        return ComparedSamples(data=MADE_UP, batches=tuple(made_up), fixed=fixed, shapes={})
    with closing(bind_inputs(dataset, inputs).batches(size)) as batches:
        first = next(batches)
    return ComparedSamples(data=dataset.source, batches=(first.inputs,), fixed=fixed, shapes={})


def single_samples(batch: Inputs, axes: Axes, most: int, size: int = 1) -> list[Inputs]:
    """Return the first samples of a batch, ``size`` at a time; ``axes`` are those other than the first."""
    own = {name: axes.get(name, 0) if array.ndim else None for name, array in batch.items()}
    sizes = [batch[name].shape[axis] for name, axis in own.items() if axis is not None]
    return [
        {name: part_of(array, own[name], start, start + size) for name, array in batch.items()}
        for start in (range(0, min([*sizes, most]) - size + 1, size) if sizes else range(1))
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
