"""Samples that a quantized model is compared on: data, made-up inputs, or nothing; the work of one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ptq_cli.calibdata.bind import bind_inputs
from ptq_cli.calibdata.dataset.batches import part_of
from ptq_cli.core.errors import PtqError, UntrustedCodeError
from ptq_cli.core.tensors import TensorSpec, sizes_of
from ptq_cli.models.loading.onnx_source import input_specs
from ptq_cli.plan.multiply_accumulates import MultiplyAccumulates, multiply_accumulates
from ptq_cli.recipe.schema import Recipe
from ptq_cli.runtime.tapping.memory_plan import measured_shapes
from ptq_cli.runtime.timing import Inputs
from ptq_cli.setup.carried import with_states
from ptq_cli.setup.resolve import Reading
from ptq_cli.setup.served_inputs import MADE_UP, made_up_batches, own_batch_size

COMPARED_SAMPLES = 64  # at most, in batches of 8
BATCH = 8


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
    batch = fixed or BATCH
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
    generated = made_up_batches(graph, batch, COMPARED_SAMPLES // BATCH, shapes)
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
