"""Labels must fit the output that a metric judges; what does not is named with its sample."""

from collections.abc import Callable

import numpy as np

from ptq_cli.calibdata.dataset.labels import is_class_index
from ptq_cli.core.errors import LabelError, MetricError
from ptq_cli.core.tensors import Array, format_shape
from ptq_cli.report.evaluation.model_outputs import Place
from ptq_cli.report.evaluation.token_targets import chosen_tokens, marked_tokens, next_tokens, pooled
from ptq_cli.report.metrics.base import LabelMetric, Labels


def fitting_targets(
    metric: LabelMetric, name: str, output: Array, place: Place, of_float: Array | None = None
) -> tuple[Array, Array]:
    """Return an output and the labels of its batch as the metric takes them.

    Args:
        metric: which one.
        name: what the report calls it.
        output: of the model.
        place: the batch, with its labels.
        of_float: the same output of the float model, which some metrics take as labels; None if it is
            ``output``.

    Shapes:
        both results are [N, ...], see ``Targets``.

    Edge case:
        Of numbers, axes of size 1 do not count: an output [N, 1] fits labels [N]. A metric of the user's gets
        what there is, also None for labels.

    Raises:
        LabelError: there are no labels, they have another shape or dtype, or one is outside the classes.
        MetricError: the output has another shape than the metric takes.

    Example:
        >>> from ptq_cli.calibdata.dataset.batch import Batch
        >>> from ptq_cli.report.metrics.values.mean_errors import MeanSquaredError
        >>> place = Place(Batch({}, labels=np.array([0.5, 1.0]), names=("a", "b")), first=0)
        >>> fitting_targets(MeanSquaredError(), "mse", np.ones((2, 1)), place)[0].shape
        (2,)
    """
    if metric.targets in _OF_TOKENS:
        _require_rows(name, output, place)
        return _OF_TOKENS[metric.targets](name, output, output if of_float is None else of_float, place)
    labels = place.batch.labels
    if labels is None:
        raise LabelError(
            f"{name} needs labels, but the evaluation data has none at {place.whole()}",
            hint="pass data with labels, or leave the metric out: metrics without labels are always computed",
        )
    _require_rows(name, output, place)
    if metric.targets == "pooled pairs" and output.ndim == 3:
        output = pooled(name, output, place)
    check = {"classes": _classes, "masks": _masks, "values": _values, "pairs": _pairs, "any": _any}
    return {**check, "pooled pairs": _scores}[metric.targets](metric, name, output, labels, place)


_OF_TOKENS: dict[str, Callable[[str, Array, Array, Place], tuple[Array, Array]]] = {
    "tokens": lambda name, output, _, place: (output, next_tokens(name, output, place)),
    "marked tokens": lambda name, output, _, place: (output, marked_tokens(name, output, place)),
    "float tokens": lambda name, output, other, place: (output, chosen_tokens(name, other, place)),
    "float embeddings": lambda name, output, other, place: (
        pooled(name, output, place),
        pooled(name, other, place),
    ),
}
"""By the targets of a metric: what it takes for an output, and for that of the float model."""


def _require_rows(name: str, output: Array, place: Place) -> None:
    if output.shape[:1] != (place.batch.size,):
        raise MetricError(
            f"{name} needs an output with one row per sample, but it has shape "
            f"{format_shape(output.shape)} for a batch of {place.batch.size} samples, at {place.whole()}",
            hint="a metric with labels needs an output whose first axis is the samples",
        )


def _classes(
    metric: LabelMetric, name: str, output: Array, labels: Array, place: Place
) -> tuple[Array, Array]:
    del metric
    if not is_class_index(labels):
        raise LabelError(
            f"{name} needs one class index per sample, but labels have shape "
            f"{format_shape(labels.shape)} and dtype {labels.dtype} at {place.whole()}",
            hint="for one-hot rows, take argmax over the last axis; for numbers as targets, use mse or r2",
        )
    if output.ndim <= 2:
        _require_range(labels, max(2, output.shape[1]) if output.ndim == 2 else 2, place)
    return output, labels


def _masks(metric: LabelMetric, name: str, output: Array, labels: Array, place: Place) -> tuple[Array, Array]:
    wanted = (output.shape[0], *output.shape[2:])
    if output.ndim < 3:
        raise MetricError(
            f"{name} needs an output of shape [samples, classes, height, width], got "
            f"{format_shape(output.shape)}",
            hint=f"leave the metric out, or give the output that has the masks: {name}[OUTPUT]",
        )
    if labels.dtype.kind not in "iu" or labels.shape != wanted:
        raise LabelError(
            f"{name} needs a class index for each pixel, of shape {format_shape(wanted)}, but labels have "
            f"shape {format_shape(labels.shape)} and dtype {labels.dtype} at {place.whole()}",
            hint="resize the masks to the output's size, with nearest-neighbor sampling",
        )
    ignored = getattr(metric, "ignore_index", None)
    _require_range(labels, output.shape[1], place, ignored)
    return output, labels


def _values(
    metric: LabelMetric, name: str, output: Array, labels: Array, place: Place
) -> tuple[Array, Array]:
    del metric
    shapes = [
        [array.shape[0], *(size for size in array.shape[1:] if size != 1)] for array in (output, labels)
    ]
    if shapes[0] != shapes[1]:
        raise LabelError(
            f"{name} needs labels of the output's shape {format_shape(output.shape)}, but they have shape "
            f"{format_shape(labels.shape)} at {place.whole()}",
            hint="for classes use top1 or f1",
        )
    return output.reshape(shapes[0]), labels.reshape(shapes[0])


def _pairs(metric: LabelMetric, name: str, output: Array, labels: Array, place: Place) -> tuple[Array, Array]:
    del metric
    if output.ndim < 2 or labels.ndim != 1:
        raise MetricError(
            f"{name} needs embeddings [samples, features] and one label per sample, got "
            f"{format_shape(output.shape)} and {format_shape(labels.shape)} at {place.whole()}",
            hint=f"give the output that has the embeddings: {name}[OUTPUT]",
        )
    return output, labels


def _scores(
    metric: LabelMetric, name: str, output: Array, labels: Array, place: Place
) -> tuple[Array, Array]:
    """Return embeddings, or one score per sample, with one label per sample."""
    if output.size == len(output) and labels.ndim == 1:
        return output.reshape(len(output)), labels
    return _pairs(metric, name, output, labels, place)


def _any(metric: LabelMetric, name: str, output: Array, labels: Array, place: Place) -> tuple[Array, Array]:
    del metric, name, place
    return output, labels


def _require_range(labels: Labels, class_count: int, place: Place, ignored: int | None = None) -> None:
    outside = (labels < 0) | (labels >= class_count)
    if ignored is not None:
        outside &= labels != ignored
    if outside.any():
        index = np.argwhere(outside)[0]
        hint = "labels are class indices that start at 0, in the order of the model's outputs"
        if labels.ndim > 1:
            hint += "; to ignore a label, set arguments = { ignore_index = 255 } under [[metric]]"
        raise LabelError(
            f"the label {labels[tuple(index)]} of {place.sample(int(index[0]))} is outside the {class_count} "
            f"classes 0 to {class_count - 1}",
            hint=hint,
        )
