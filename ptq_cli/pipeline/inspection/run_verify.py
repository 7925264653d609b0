"""``verify``: what of a quantized model runs as integers, and whether it is as its target asks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from ptq_cli.calibdata.bind import bind_inputs
from ptq_cli.calibdata.dataset.rebatch import part_of
from ptq_cli.core.errors import InvalidOnnxError, PtqError, UsageError
from ptq_cli.core.tensors import TensorSpec, sizes_of
from ptq_cli.core.work.progress import Progress, ProgressCallback, silent
from ptq_cli.models.converting.opset import opset_of
from ptq_cli.models.files.stored import serialize
from ptq_cli.models.inputs.batch_axes import Axes, note_axes, noted_axes
from ptq_cli.models.inputs.fixed_inputs import fix_inputs
from ptq_cli.models.loading.onnx_source import input_specs
from ptq_cli.models.operators.pair_operators import QUANTIZE
from ptq_cli.pipeline.inspection.target_of import target_of
from ptq_cli.pipeline.preparing.made_up_inputs import MADE_UP, made_up_batches, own_batch_size
from ptq_cli.pipeline.run.reading import reading_of
from ptq_cli.pipeline.run.resolve import Request, resolve
from ptq_cli.pipeline.run.run_directory import RunDirectory
from ptq_cli.plan.multiply_accumulates import MultiplyAccumulates, multiply_accumulates
from ptq_cli.plan.target.rules import ONNXRUNTIME, Target
from ptq_cli.qdq.metadata import VERSION
from ptq_cli.qdq.proof.carried_pairs import restored_by
from ptq_cli.qdq.proof.operators import in_blocks, prove_operators
from ptq_cli.qdq.proof.target_faults import Fault, target_faults
from ptq_cli.qdq.read.pair_grids import grid_of
from ptq_cli.qdq.read.quantized_file import open_quantized
from ptq_cli.recipe.recipe_layers import file_layer
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections.runtime_section import RuntimeSettings
from ptq_cli.report.proof.kernel_differences import compare_kernels
from ptq_cli.report.proof.optimized_outputs import compare_optimized
from ptq_cli.report.proof.verification import KernelComparison, OutputComparison, Verification
from ptq_cli.runtime.engines.engine import Kernel
from ptq_cli.runtime.engines.engine_registry import at_level, engine_of, measuring_engine
from ptq_cli.runtime.tapping.sizes import measured_shapes
from ptq_cli.runtime.turns import Batch

COMPARED_SAMPLES = 64
COMPARED_ALONE = 4
"""Samples that kernels are compared on alone: one that is wrong is wrong for many values of each."""
KERNEL_STEPS = 2.0
"""Default limit. Rounding explains one step of a kernel; a second is for what a runtime fuses further."""
BATCH = 8


@dataclass(frozen=True)
class VerifyOptions:
    """What ``verify`` is asked for besides a recipe's settings.

    Attributes:
        min_integer_share: the least share of the multiply-accumulates in integers, 0 to 1.
        made_up: compare outputs on generated inputs if there are no data.
        max_kernel_steps: the largest difference of a kernel from its operators as written, in steps.
    """

    min_integer_share: float | None = None
    made_up: bool = False
    max_kernel_steps: float = KERNEL_STEPS


def run_verify(
    request: Request,
    run: RunDirectory,
    model: Path | None = None,
    options: VerifyOptions = VerifyOptions(),
    progress: ProgressCallback = silent,
) -> Verification:
    """Verify a quantized model; nothing is written.

    Args:
        request: target, data and threads.
        run: whose quantized model is taken where none is named.
        model: any ONNX file with Q/DQ.
        options: the gate, and made-up inputs.
        progress: is called as the work proceeds.

    Raises:
        UsageError: the share is not between 0 and 1, or the steps are negative.
        MissingStageError: no model was given, and the run has none.
        NotQuantizedError: the model holds no Q/DQ.
        InvalidOnnxError: its opset is older than the target's Q/DQ needs.
        PtqError: the model, the recipe or the data cannot be used.
    """
    share = options.min_integer_share
    if share is not None and not 0 <= share <= 1:
        raise UsageError(
            f"--min-integer-share is {share:g}, expected a share from 0 to 1",
            hint="for example: --min-integer-share 0.95",
        )
    if not options.max_kernel_steps >= 0:
        raise UsageError(
            f"--max-kernel-steps is {options.max_kernel_steps:g}, expected a number from 0 on",
            hint=f"the default is {KERNEL_STEPS:g}",
        )
    path = model if model is not None else run.require_stage(run.quantized_model, "ptq export")
    beside = RunDirectory(path.parent).recipe
    resolved = resolve(request, otherwise=file_layer(beside) if beside.is_file() else None)
    progress(Progress(f"reading {path.name}", 0, None))
    graph = open_quantized(path)
    fix_inputs(graph, resolved.recipe.model.inputs, path.name)
    note_axes(graph, resolved.recipe.data.batch_axis, path.name)
    target = target_of(graph, resolved, named="target" in request.settings)
    _require_opset(graph, target, path)
    engine = engine_of(target)
    if engine is not None:
        progress(Progress(f"asking {engine.title}'s optimizer", 0, None))
    kernels = engine.find_kernels(graph) if engine is not None else None
    recipe = resolved.recipe
    samples, faults = _samples(graph, recipe, required="data" in request.settings, made_up=options.made_up)
    work = _work(graph, samples)
    return Verification(
        model=str(path),
        made_by=_maker(graph),
        target=target.name,
        opset=opset_of(graph),
        runtime=engine.version() if engine is not None else "",
        operators=prove_operators(graph, target, work, kernels),
        unknown=work.unknown,
        assumed=work.assumed,
        once=work.once,
        faults=(*target_faults(graph, target), *_unread_blocks(graph, target, kernels)),
        comparison=_compare(graph, samples, target, recipe.runtime, resolved.machine.threads, progress),
        min_integer_share=share,
        data_faults=faults,
        kernel_comparison=_compare_kernels(
            graph, samples, target, options.max_kernel_steps, resolved.machine.threads, progress
        ),
    )


def _unread_blocks(graph: ir.Model, target: Target, kernels: Mapping[str, Kernel] | None) -> Iterator[Fault]:
    """Yield layers whose weight is in blocks that a kernel reads, and that did not get that kernel."""
    if kernels is None or any(node.op_type == QUANTIZE for node in graph.graph.all_nodes()):
        return  # Beside integers a weight may be in blocks for the sake of the file alone.
    for node in graph.graph.all_nodes():
        described, kernel = in_blocks(node, target), kernels[node.name or ""]
        wanted = target.op[node.op_type].blocks if described else None
        if wanted is not None and kernel.name != wanted.kernel:
            found = kernel.name or "another operator"
            text = f"{described}, and became {found} where {wanted.kernel} was expected"
            yield Fault("blocks", f"{node.op_type} '{node.name}': {text}")


def _require_opset(graph: ir.Model, target: Target, path: Path) -> None:
    opset = opset_of(graph)
    if opset < target.opset:
        raise InvalidOnnxError(
            f"model '{path.name}' has opset {opset}, target '{target.name}' needs {target.opset} or later",
            hint="quantize a float model with a newer opset",
        )


def _maker(graph: ir.Model) -> str:
    version = graph.metadata_props.get(VERSION)
    if version is not None:
        return f"ptq {version}"
    return " ".join(filter(None, (graph.producer_name, graph.producer_version)))


@dataclass(frozen=True, kw_only=True)
class _Samples:
    """What the outputs are compared on: no batches where there are no data; and shapes that were given.

    ``count`` is the number of samples in all, where they are not made up.
    """

    data: str
    batches: tuple[Batch, ...]
    fixed: int | None
    shapes: Mapping[str, tuple[int, ...]]
    count: int | None = None


def _samples(
    graph: ir.Model, recipe: Recipe, *, required: bool, made_up: bool
) -> tuple[_Samples, tuple[str, ...]]:
    """Return what the outputs are compared on, and why data of the recipe cannot be used.

    Args:
        graph: the quantized model.
        recipe: names data, and the shapes of inputs that are generated.
        required: whether the data were asked for; those of a recipe may be gone where a run has been moved.
        made_up: generate inputs if there are no data.

    Raises:
        PtqError: the data that were asked for cannot be used.
    """
    inputs = input_specs(graph)
    fixed = own_batch_size(inputs)
    batch = fixed or BATCH
    shapes = {name: tuple(shape) for name, shape in recipe.model.input_shape.items()}
    count = max(COMPARED_SAMPLES - COMPARED_SAMPLES % batch, batch)
    faults: list[str] = []
    for data in dict.fromkeys(filter(None, (recipe.calibration.data, recipe.evaluation.data))):
        try:
            dataset = bind_inputs(reading_of(recipe).open(data, count), inputs)
            batches = tuple(dataset.batches(batch))
            total = sum(item.size for item in batches)
            arrays = tuple(item.inputs for item in batches)
            found = _Samples(data=data, batches=arrays, fixed=fixed, shapes=shapes, count=total)
            return found, tuple(faults)
        except PtqError as error:
            if required:
                raise
            faults.append(error.message)
    if not made_up:
        return _Samples(data="", batches=(), fixed=fixed, shapes=shapes), tuple(faults)
    generated = made_up_batches(graph, batch, COMPARED_SAMPLES // BATCH, shapes)
    found = _Samples(data=MADE_UP, batches=tuple(generated), fixed=fixed, shapes=shapes)
    return found, tuple(faults)


def _work(graph: ir.Model, samples: _Samples) -> MultiplyAccumulates:
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


def _sizes(samples: _Samples, inputs: Sequence[TensorSpec]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of one sample, for which the work is counted."""
    shapes = dict(samples.shapes)
    if samples.batches:
        shapes = {name: array.shape for name, array in samples.batches[0].items()}
    if samples.fixed is not None:
        return shapes
    return sizes_of(inputs, shapes, 1)


def _compare(
    graph: ir.Model,
    samples: _Samples,
    target: Target,
    settings: RuntimeSettings,
    threads: int,
    progress: ProgressCallback,
) -> OutputComparison | None:
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


def _compare_kernels(
    graph: ir.Model,
    samples: _Samples,
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
