"""Metrics that judge each model, and labels, tokens and embeddings fitted to the output that they judge."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from ptq_cli.calibdata.dataset.labels import is_class_index
from ptq_cli.core.errors import LabelError, MetricError
from ptq_cli.core.tensors import Array, format_shape
from ptq_cli.core.words import did_you_mean
from ptq_cli.evaluation.bootstrap import Float64Array
from ptq_cli.evaluation.document.measurement import Measurement
from ptq_cli.evaluation.free_states import Indices, drawn_by
from ptq_cli.evaluation.metrics.base import LabelMetric, Labels
from ptq_cli.evaluation.metrics.class_accuracy import ClassAccuracy
from ptq_cli.evaluation.metrics.spec import Make, MetricSpec, metric_maker
from ptq_cli.evaluation.metrics.token_metrics import IGNORED, require_token_scores
from ptq_cli.evaluation.runs.model_outputs import Place
from ptq_cli.evaluation.uncertainty import with_interval, with_paired_intervals
from ptq_cli.recipe.locations import relative_location

Mask = npt.NDArray[np.bool_]
# Parts of the names of inputs that hold whole numbers for each position, but no tokens.
_NOT_TOKENS = ("mask", "position", "type", "segment", "cache", "past")


def next_tokens(name: str, output: Array, place: Place) -> Labels:
    """Token that follows each position, [N, T]; -100 where there is none, or the mask is 0.

    Labels [N, T] are taken as they are, otherwise the input tokens are shifted by one.
    """
    require_token_scores(output, name)
    labels = _given(place, output)
    if labels is None:
        tokens = _input_tokens(place, output)
        if tokens is None:
            raise LabelError(
                f"{name} needs the tokens that the model reads, but no input has whole numbers of shape "
                f"{format_shape(output.shape[:2])} at {place.whole()}",
                hint="the output must have one row of scores per input token; or add an array 'label' with "
                "the token that follows each position, and -100 where none counts",
            )
        kept = kept_positions(place, output)
        labels = np.full(tokens.shape, IGNORED, np.int64)
        labels[:, :-1] = np.where(kept[:, 1:] & kept[:, :-1], tokens[:, 1:], IGNORED)
    return _within(labels, output, place)


def marked_tokens(name: str, output: Array, place: Place) -> Labels:
    """Labels [N, T] of the data: the right token of each position that counts, otherwise -100."""
    require_token_scores(output, name)
    labels = _given(place, output)
    if labels is None:
        raise LabelError(
            f"{name} needs a label per position, of shape {format_shape(output.shape[:2])}, "
            f"at {place.whole()}",
            hint="--set text.mask_share=0.15 masks tokens of text data; or add an array 'label' with the "
            "right token of each masked position, and -100 at all others",
        )
    return _within(labels, output, place)


def chosen_tokens(name: str, of_float: Array, place: Place) -> Labels:
    """Tokens that the float model chooses, [N, T]; -100 where the mask is 0."""
    require_token_scores(of_float, name)
    chosen = np.argmax(of_float, axis=2).astype(np.int64)
    return np.where(kept_positions(place, of_float), chosen, IGNORED)


def pooled(name: str, output: Array, place: Place) -> Array:
    """Embeddings [N, features]: of [N, T, features] the mean over the positions that count.

    Edge case: An output [N, features] is returned as it is. Where no position counts, the embedding is zero.
    """
    if output.ndim == 2:
        return output
    if output.ndim != 3:
        raise MetricError(
            f"{name} needs embeddings [samples, features] or [samples, positions, features], got "
            f"{format_shape(output.shape)} at {place.whole()}",
            hint=f"give the output that has the embeddings: {name}[OUTPUT]",
        )
    found: Float64Array = np.zeros((output.shape[0], output.shape[2]))
    for row, values, kept in zip(found, output, kept_positions(place, output), strict=True):
        if kept.any():
            row[:] = values[kept].astype(np.float64).mean(axis=0)
    return found


def kept_positions(place: Place, output: Array) -> Mask:
    """Positions of an output [N, T, …] that count, [N, T] of booleans.

    Edge case: Without an input that is a mask, those whose label is not -100; without such labels all.
    """
    shape = output.shape[:2]
    for key, array in _of_rank_two(place.batch.inputs).items():
        # A cache of earlier positions lengthens the mask at its start.
        if "mask" in key and array.shape[0] == shape[0] and array.shape[1] >= shape[1]:
            kept: Mask = array[:, array.shape[1] - shape[1] :] != 0
            return kept
    labels = _given(place, output)
    return np.ones(shape, np.bool_) if labels is None else np.asarray(labels != IGNORED)


def _given(place: Place, output: Array) -> Labels | None:
    """Labels of each position; None if the data has others, or none."""
    labels = place.batch.labels
    is_given = labels is not None and labels.dtype.kind in "iu" and labels.shape == output.shape[:2]
    return labels if is_given else None


def _input_tokens(place: Place, output: Array) -> Array | None:
    inputs = _of_rank_two(place.batch.inputs)
    found = {key: array for key, array in inputs.items() if array.shape == output.shape[:2]}
    return found.get(token_input(list(found)) or "")


def token_input(names: Sequence[str]) -> str | None:
    """Input that holds the tokens, of those of whole numbers with two axes.

    Example:
        >>> token_input(["input_ids", "attention_mask"]), token_input(["input_ids", "decoder_input_ids"])
        ('input_ids', 'decoder_input_ids')
    """
    found = [name for name in names if not any(part in name.lower() for part in _NOT_TOKENS)]
    named = [name for name in found if "decoder" in name.lower()] or found
    return named[0] if len(named) == 1 else next((name for name in found if name == "input_ids"), None)


def _of_rank_two(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Inputs of whole numbers or booleans by name in small letters, those of a decoder first."""
    names = sorted(inputs, key=lambda name: "decoder" not in name.lower())
    found = {name.lower(): inputs[name] for name in names}
    return {name: array for name, array in found.items() if array.ndim == 2 and array.dtype.kind in "iub"}


def _within(labels: Labels, output: Array, place: Place) -> Labels:
    """Labels, after checking that each is ignored or one of the output's tokens."""
    outside = (labels != IGNORED) & ((labels < 0) | (labels >= output.shape[2]))
    if outside.any():
        index = np.argwhere(outside)[0]
        raise LabelError(
            f"the token {labels[tuple(index)]} at position {index[1]} of {place.sample(int(index[0]))} is "
            f"outside the {output.shape[2]:,} tokens of the output",
            hint="use the tokenizer that the model was trained with; -100 marks positions that do not count",
        )
    return labels


def fitting_targets(
    metric: LabelMetric, name: str, output: Array, place: Place, of_float: Array | None = None
) -> tuple[Array, Array]:
    """An output and the labels of its batch as the metric takes them.

    Some metrics take ``of_float``, the same output of the float model, as labels; None if it is ``output``.

    Shapes: both results are [N, ...], see ``Targets``.
    Edge case: Of numbers, axes of size 1 do not count: an output [N, 1] fits labels [N]. A metric of the
    user's gets what there is, also None for labels.
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
    if metric.targets == "pairs" and output.ndim == 3:
        output = pooled(name, output, place)
    if metric.targets == "any":
        return output, labels
    if metric.targets == "masks":
        return _masks(name, output, labels, place, getattr(metric, "ignore_index", None))
    check = {"classes": _classes, "values": _values, "pairs": _pairs}
    return check[metric.targets](name, output, labels, place)


# By the targets of a metric: what it takes for an output, and for that of the float model.
_OF_TOKENS: dict[str, Callable[[str, Array, Array, Place], tuple[Array, Array]]] = {
    "tokens": lambda name, output, _, place: (output, next_tokens(name, output, place)),
    "marked tokens": lambda name, output, _, place: (output, marked_tokens(name, output, place)),
    "float tokens": lambda name, output, other, place: (output, chosen_tokens(name, other, place)),
    "float embeddings": lambda name, output, other, place: (
        pooled(name, output, place),
        pooled(name, other, place),
    ),
}


def _require_rows(name: str, output: Array, place: Place) -> None:
    if output.shape[:1] != (place.batch.size,):
        raise MetricError(
            f"{name} needs an output with one row per sample, but it has shape "
            f"{format_shape(output.shape)} for a batch of {place.batch.size} samples, at {place.whole()}",
            hint="a metric with labels needs an output whose first axis is the samples",
        )


def _classes(name: str, output: Array, labels: Array, place: Place) -> tuple[Array, Array]:
    if not is_class_index(labels):
        raise LabelError(
            f"{name} needs one class index per sample, but labels have shape "
            f"{format_shape(labels.shape)} and dtype {labels.dtype} at {place.whole()}",
            hint="for one-hot rows, take argmax over the last axis; for numbers as targets, use mse or r2",
        )
    if output.ndim <= 2:
        _require_range(labels, max(2, output.shape[1]) if output.ndim == 2 else 2, place)
    return output, labels


def _masks(name: str, output: Array, labels: Array, place: Place, ignored: int | None) -> tuple[Array, Array]:
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
    _require_range(labels, output.shape[1], place, ignored)
    return output, labels


def _values(name: str, output: Array, labels: Array, place: Place) -> tuple[Array, Array]:
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


def _pairs(name: str, output: Array, labels: Array, place: Place) -> tuple[Array, Array]:
    """Embeddings, or one score per sample, with one label per sample."""
    if output.size == len(output) and labels.ndim == 1:
        return output.reshape(len(output)), labels
    if output.ndim < 2 or labels.ndim != 1:
        raise MetricError(
            f"{name} needs embeddings [samples, features] and one label per sample, got "
            f"{format_shape(output.shape)} and {format_shape(labels.shape)} at {place.whole()}",
            hint=f"give the output that has the embeddings: {name}[OUTPUT]",
        )
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


FLOAT_MODEL = "float model"
CLASS_ACCURACY = "class_accuracy"


@dataclass(frozen=True)
class Judged:
    """A metric, and the output that it judges: an index and a name."""

    spec: MetricSpec
    output: int
    output_name: str
    make: Make


def judged_metrics(
    specs: Iterable[MetricSpec], outputs: Sequence[str], classes: Mapping[str, int] | None = None
) -> tuple[Judged, ...]:
    """Metrics with what makes them, once it is known that they can be made.

    ``classes`` are sizes of the outputs' second axes, if they are known.
    """
    found = []
    for spec in specs:
        name = spec.output if spec.output is not None else outputs[0]
        if name not in outputs:
            raise MetricError(
                f"{spec.name}: the model has no output '{name}'{did_you_mean(name, list(outputs))}",
                hint=f"its outputs: {', '.join(outputs)}",
            )
        make = metric_maker(spec, (classes or {}).get(name))
        found.append(Judged(spec, outputs.index(name), name, make))
    return tuple(found)


def judged_measurement(
    judged: Judged,
    metrics: Mapping[str, LabelMetric],
    model: str,
    class_names: Sequence[str],
    samples: int,
    recordings: Indices | None = None,
) -> Measurement:
    """Measurement of a quantized model and of the float one, with intervals."""
    spec, of_float, of_quantized = judged.spec, metrics[FLOAT_MODEL], metrics[model]
    code = spec.code
    plain = Measurement(
        name=spec.name,
        unit=of_quantized.unit,
        needs_labels=spec.needs_labels,
        higher_is_better=of_quantized.higher_is_better,
        quantized_value=of_quantized.compute(),
        float_value=of_float.compute(),
        output=judged.output_name,
        computed_by=relative_location(code, Path.cwd()) if code is not None else None,
        arguments={name: json.dumps(value, default=str) for name, value in spec.arguments.items()},
    )
    drawn = [drawn_by(recordings, item.resampling(), samples) for item in (of_float, of_quantized)]
    measured = with_paired_intervals(plain, *drawn)
    if spec.metric != CLASS_ACCURACY:
        return measured
    pair = cast(ClassAccuracy, of_float), cast(ClassAccuracy, of_quantized)
    return replace(measured, by_class=ClassAccuracy.by_class(*pair, class_names))


def compared_measurement(
    judged: Judged, metric: LabelMetric, samples: int, recordings: Indices | None = None
) -> Measurement:
    """Measurement of a metric whose labels are of the float model: it has one value."""
    plain = Measurement(
        name=judged.spec.name,
        unit=metric.unit,
        needs_labels=False,
        higher_is_better=metric.higher_is_better,
        quantized_value=metric.compute(),
        output=judged.output_name,
    )
    return with_interval(plain, drawn_by(recordings, metric.resampling(), samples), samples)
