"""Where the samples are in a model's outputs, and how many an evaluation runs at once."""

import math
from contextlib import closing

import onnx_ir as ir

from ptq_cli.calibdata.dataset.batches import Batch
from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.core.errors import RuntimeFailedError
from ptq_cli.evaluation.runs.run_models import Run
from ptq_cli.evaluation.runs.sample_axes import NO_AXIS, Axis, axes_for_one_sample, axes_that_grow
from ptq_cli.models.batch_axes import noted_axes


def leads_with_samples(model: ir.Model) -> bool:
    """Tell whether the first axis of each output has the symbolic size that the first one of an input has."""
    inputs, outputs = model.graph.inputs, model.graph.outputs
    batch = {_first_size(value) for value in inputs} - {None}
    return all(_first_size(value) in batch for value in outputs)


def noted_output_axes(model: ir.Model) -> tuple[Axis, ...] | None:
    """The axis of the samples of each output that the metadata have; None if they have none."""
    axes = noted_axes(model)
    if not axes:
        return None
    found = [axes.get(value.name or "", 0) for value in model.graph.outputs]
    return tuple(NO_AXIS if axis is None else axis for axis in found)


def output_axes(dataset: Dataset, fixed: int | None, outputs: int, run: Run) -> tuple[Axis, ...]:
    """The axis of each output that the samples are on; None where it is not known."""
    unknown: tuple[Axis, ...] = (None,) * outputs
    try:
        one = _batch_of(dataset, 1) if fixed in (None, 1) else None
        if one is None or fixed == 1:
            return axes_for_one_sample(run(one.inputs)) if one is not None else unknown
        two = _batch_of(dataset, 2)
        return axes_that_grow(run(one.inputs), run(two.inputs)) if two is not None else unknown
    except RuntimeFailedError:  # It does not take so few: the metrics say what they cannot do.
        return unknown


def _first_size(value: ir.Value) -> str | None:
    size = value.shape[0] if value.shape is not None and len(value.shape) else None
    return size.value if isinstance(size, ir.SymbolicDim) else None


def _batch_of(dataset: Dataset, size: int) -> Batch | None:
    with closing(dataset.batches(size)) as batches:
        batch = next(batches, None)
    return batch if batch is not None and batch.size == size else None


MOST_BYTES = 1 << 28  # of the scores of tokens of one batch and model: several models' are in memory at once


def fitting_batch(dataset: Dataset, model: ir.Model, wanted: int) -> int:
    """The samples of a batch: those wanted, or as many as have 256 MiB of scores, at least 1.

    The data's inputs of two axes say how long a sequence is, the model's outputs [samples, positions, tokens]
    how many scores a position has. Other outputs are not looked at.
    """
    lengths = [spec.shape[1] for spec in dataset.specs.values() if len(spec.shape) == 2]
    longest = max((length for length in lengths if length is not None), default=0)
    sizes = [_bytes(value, longest) for value in model.graph.outputs]
    largest = max(sizes, default=0)
    return max(1, min(wanted, MOST_BYTES // largest)) if largest else wanted


def _bytes(value: ir.Value, longest: int) -> int:
    """Bytes of an output for each sample; 0 if not known."""
    if value.shape is None or len(value.shape) != 3 or value.dtype is None:
        return 0
    sizes = [size if isinstance(size, int) else longest for size in list(value.shape)[1:]]
    return math.prod(sizes) * math.ceil(value.dtype.itemsize)
