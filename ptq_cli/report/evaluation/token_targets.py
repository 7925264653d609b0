"""What metrics of tokens are held against: the shifted inputs, labels, or the float model's choice."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from ptq_cli.core.errors import LabelError, MetricError
from ptq_cli.core.tensors import Array, format_shape
from ptq_cli.report.evaluation.model_outputs import Place
from ptq_cli.report.metrics.base import Float64Array, Labels
from ptq_cli.report.metrics.language.token_rows import IGNORED, require_token_scores

Mask = npt.NDArray[np.bool_]

_NOT_TOKENS = ("mask", "position", "type", "segment", "cache", "past")
"""Parts of the names of inputs that hold whole numbers for each position, but no tokens."""


def next_tokens(name: str, output: Array, place: Place) -> Labels:
    """Return the token that follows each position, [N, T]; -100 where there is none, or the mask is 0.

    Args:
        name: the metric's.
        output: of the model, [N, T, tokens].
        place: the batch: labels [N, T] are taken as they are, otherwise its input tokens are shifted by one.

    Raises:
        LabelError: there are neither labels [N, T] nor input tokens, or a token is outside the output's.
        MetricError: the output is not scores of tokens.
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
    """Return the labels [N, T] of the data: the right token of each position that counts, otherwise -100.

    Raises:
        LabelError: the labels have another shape, or there are none; or a token is outside the output's.
        MetricError: the output is not scores of tokens.
    """
    require_token_scores(output, name)
    labels = _given(place, output)
    if labels is None:
        raise LabelError(
            f"{name} needs a label per position, of shape {format_shape(output.shape[:2])}, "
            f"at {place.whole()}",
            hint="--mask-share 0.15 masks tokens of text data; or add an array 'label' with the right token "
            "of each masked position, and -100 at all others",
        )
    return _within(labels, output, place)


def chosen_tokens(name: str, of_float: Array, place: Place) -> Labels:
    """Return the tokens that the float model chooses, [N, T]; -100 where the mask is 0.

    Raises:
        MetricError: the output is not scores of tokens.
    """
    require_token_scores(of_float, name)
    chosen = np.argmax(of_float, axis=2).astype(np.int64)
    return np.where(kept_positions(place, of_float), chosen, IGNORED)


def pooled(name: str, output: Array, place: Place) -> Array:
    """Return embeddings [N, features]: of [N, T, features] the mean over the positions that count.

    Edge case:
        An output [N, features] is returned as it is. Where no position counts, the embedding is zero.

    Raises:
        MetricError: the output has another rank.
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
    """Return which positions of an output [N, T, …] count, [N, T] of booleans.

    Edge case:
        Without an input that is a mask, those whose label is not -100; without such labels all.
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
    """Return labels that say something of each position; None if the data has others, or none."""
    labels = place.batch.labels
    is_given = labels is not None and labels.dtype.kind in "iu" and labels.shape == output.shape[:2]
    return labels if is_given else None


def _input_tokens(place: Place, output: Array) -> Array | None:
    """Return the input that holds the tokens; of an encoder and a decoder those of the decoder."""
    found = {
        key: array
        for key, array in _of_rank_two(place.batch.inputs).items()
        if array.shape == output.shape[:2] and not any(part in key for part in _NOT_TOKENS)
    }
    named = [array for key, array in found.items() if "decoder" in key] or list(found.values())
    return named[0] if len(named) == 1 else found.get("input_ids")


def _of_rank_two(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return the inputs of whole numbers or booleans by name in small letters, those of a decoder first."""
    names = sorted(inputs, key=lambda name: "decoder" not in name.lower())
    return {name.lower(): inputs[name] for name in names if inputs[name].ndim == 2 and _whole(inputs[name])}


def _whole(array: Array) -> bool:
    return array.dtype.kind in "iub"


def _within(labels: Labels, output: Array, place: Place) -> Labels:
    """Return the labels, after checking that each is ignored or one of the output's tokens."""
    outside = (labels != IGNORED) & ((labels < 0) | (labels >= output.shape[2]))
    if outside.any():
        index = np.argwhere(outside)[0]
        raise LabelError(
            f"the token {labels[tuple(index)]} at position {index[1]} of {place.sample(int(index[0]))} is "
            f"outside the {output.shape[2]:,} tokens of the output",
            hint="use the tokenizer that the model was trained with; -100 marks positions that do not count",
        )
    return labels
