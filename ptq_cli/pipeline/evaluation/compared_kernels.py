"""Optimized model beside the file as written, on samples: outputs, and each kernel alone."""

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import onnx_ir as ir

from ptq_cli.calibdata.bind import bind_inputs
from ptq_cli.calibdata.dataset.batches import part_of
from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.core.errors import PtqError, UntrustedCodeError, WrongKernelError
from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.core.tensors import TensorSpec, sizes_of
from ptq_cli.evaluation.verification import (
    CLEAR_DB,
    COMPARING_STAGE,
    KERNEL_STEPS,
    KernelComparison,
    KernelDifference,
    OutputComparison,
    compare_kernels,
    compare_optimized,
    saturation_here,
)
from ptq_cli.models.batch_axes import Axes, noted_axes
from ptq_cli.models.files.stored import StoredModel, serialize
from ptq_cli.models.loading.onnx_source import input_specs
from ptq_cli.models.pair_operators import QUANTIZE
from ptq_cli.plan.multiply_accumulates import MultiplyAccumulates, multiply_accumulates
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import RUNTIME_TITLES, Target
from ptq_cli.qdq.proof.carried_pairs import restored_by
from ptq_cli.qdq.read.pair_grids import grid_of
from ptq_cli.qdq.read.quantized_file import with_types
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections import RuntimeSettings
from ptq_cli.runtime.engine import Engine
from ptq_cli.runtime.engine_registry import engine_alone, measuring_engine
from ptq_cli.runtime.openvino import OPEN_VINO
from ptq_cli.runtime.tapping.memory_plan import measured_shapes
from ptq_cli.runtime.timing import Inputs
from ptq_cli.setup.resolve import Reading, Resolved
from ptq_cli.setup.served_inputs import MADE_UP, made_up_batches, own_batch_size, with_states

COMPARED_SAMPLES = 64  # at most, in batches of 8
_BATCH = 8


@dataclass(frozen=True, kw_only=True)
class ComparedSamples:
    """Samples for a comparison: no batches where there are no data; and shapes that were given.

    ``count`` is the number of samples in all, where they are not made up.
    """

    data: str
    batches: tuple[Inputs, ...]
    fixed: int | None
    shapes: Mapping[str, tuple[int, ...]]
    count: int | None = None


def compared_samples(
    graph: ir.Model, recipe: Recipe, reading: Reading, *, required: bool, made_up: bool
) -> tuple[ComparedSamples, tuple[str, ...]]:
    """Return the samples to compare on, and why data of the recipe cannot be used.

    Data of a recipe that were not ``required`` may be gone where a run has been moved.
    """
    inputs = input_specs(graph)
    fixed = own_batch_size(inputs)
    batch = fixed or _BATCH
    shapes = {name: tuple(shape) for name, shape in recipe.model.input_shape.items()}
    count = max(COMPARED_SAMPLES - COMPARED_SAMPLES % batch, batch)
    faults: list[str] = []
    for data in dict.fromkeys(filter(None, (recipe.calibration.data, recipe.evaluation.data))):
        try:
            dataset = bind_inputs(with_states(reading.open(data, count), recipe.data, graph), inputs)
            batches = tuple(dataset.batches(batch))
            total = sum(item.size for item in batches)
            arrays = tuple(item.inputs for item in batches)
            found = ComparedSamples(data=data, batches=arrays, fixed=fixed, shapes=shapes, count=total)
            return found, tuple(faults)
        except PtqError as error:
            if required or isinstance(error, UntrustedCodeError):
                raise
            faults.append(error.message)
    if not made_up:
        return ComparedSamples(data="", batches=(), fixed=fixed, shapes=shapes), tuple(faults)
    generated = made_up_batches(graph, batch, COMPARED_SAMPLES // _BATCH, shapes)
    found = ComparedSamples(data=MADE_UP, batches=tuple(generated), fixed=fixed, shapes=shapes)
    return found, tuple(faults)


def sample_work(graph: ir.Model, samples: ComparedSamples) -> MultiplyAccumulates:
    """Count the work of one sample; where shapes cannot be inferred, the sample is run to learn them."""
    inputs = input_specs(graph)
    sizes, batch = _sizes(samples, inputs), samples.fixed or 1
    work = multiply_accumulates(graph, sizes)
    # What a nested graph computes is of the step, not of the run.
    nodes = [node for node in graph.graph if (node.name or "") in work.unknown]
    values = [value for node in nodes for value in (*node.inputs, node.outputs[0]) if value is not None]
    tensors = sorted({value.name for value in values if value.producer() is not None and value.name})
    if not samples.batches or not tensors:
        return work.of_one(batch)
    first = samples.batches[0]
    axes = {spec.name: spec.samples_axis for spec in inputs}
    sample = {name: part_of(array, axes[name], 0, batch) for name, array in first.items()}
    return multiply_accumulates(graph, sizes, measured_shapes(graph, tensors, sample)).of_one(batch)


def _sizes(samples: ComparedSamples, inputs: Sequence[TensorSpec]) -> dict[str, tuple[int, ...]]:
    shapes = dict(samples.shapes)
    if samples.batches:
        shapes = {name: array.shape for name, array in samples.batches[0].items()}
    if samples.fixed is not None:
        return shapes
    return sizes_of(inputs, shapes, 1)


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
        engine=engine,
        progress=progress,
    )
    return OutputComparison(samples.data, samples.count or count, differences)


def compare_each_kernel(
    graph: ir.Model, samples: ComparedSamples, execution: Execution, limit: float, progress: ProgressCallback
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
        progress(Progress(COMPARING_STAGE, 0, None, f"the kernels were not checked: {fault}"))
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
