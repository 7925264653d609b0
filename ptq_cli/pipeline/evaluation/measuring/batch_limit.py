"""How many samples an evaluation runs at once where their outputs are large."""

import math

import onnx_ir as ir

from ptq_cli.calibdata.dataset.dataset import Dataset

MOST_BYTES = 1 << 28
"""Of the scores of tokens of one batch and model: several models' are in memory at once."""


def fitting_batch(dataset: Dataset, model: ir.Model, wanted: int) -> int:
    """Return the samples of a batch: those wanted, or as many as have scores of tokens of 256 MiB.

    Args:
        dataset: bound to the model; its inputs of two axes say how long a sequence is.
        model: its outputs [samples, positions, tokens] say how many scores each position has.
        wanted: samples of a batch.

    Edge case:
        At least 1. Outputs of other ranks are not looked at.
    """
    lengths = [spec.shape[1] for spec in dataset.specs.values() if len(spec.shape) == 2]
    longest = max((length for length in lengths if length is not None), default=0)
    sizes = [_bytes(value, longest) for value in model.graph.outputs]
    largest = max(sizes, default=0)
    return max(1, min(wanted, MOST_BYTES // largest)) if largest else wanted


def _bytes(value: ir.Value, longest: int) -> int:
    """Return what an output takes for each sample; 0 if that is not known."""
    if value.shape is None or len(value.shape) != 3 or value.dtype is None:
        return 0
    sizes = [size if isinstance(size, int) else longest for size in list(value.shape)[1:]]
    return math.prod(sizes) * math.ceil(value.dtype.itemsize)
