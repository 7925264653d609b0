"""Prompts that the float and the quantized models continue greedily, each after its own tokens.

They are read step by step where states are carried, otherwise as whole sequences.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from ptq_cli.calibdata.carries import (
    CACHE_POSITION,
    MADE,
    MASK,
    POSITIONS,
    Carry,
    cached_positions,
    made_input,
)
from ptq_cli.calibdata.dataset.batches import Batch
from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.core.errors import CarryError, EmptyDataError, MetricError, SequenceLengthError
from ptq_cli.core.progress import Progress, ProgressCallback
from ptq_cli.core.tensors import Array, TensorSpec, format_shape, longest_of, rows_of
from ptq_cli.core.words import entry_option
from ptq_cli.evaluation.bootstrap import Float64Array, Unseen, bootstrap_intervals, unseen_share
from ptq_cli.evaluation.document.measurement import GENERATED, Example, Generation, Measurement
from ptq_cli.evaluation.free_states import FreeStates, require_steps
from ptq_cli.evaluation.runs.judged import token_input
from ptq_cli.evaluation.runs.run_models import Run, Runs

_TYPES = "token_type_ids"
SCORES = 3  # axes of the scores of tokens: batch, tokens, vocabulary
MOST_LISTED, MOST_EXAMPLES = 1000, 3
Tokens = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Continuation:
    """How a model's prompts are continued.

    Attributes:
        tokens: how many are added to a prompt.
        ids: the input of tokens.
        logits: the output that is their scores.
        width: tokens of a run, if the model fixes them.
        most: positions that the model has, if it says so.
        carries: what is handed on from token to token; without it, a run reads all tokens again.
    """

    tokens: int
    ids: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...]
    logits: str
    width: int | None
    most: int | None
    carries: tuple[Carry, ...]

    def require_room(self, prompt: str, length: int) -> None:
        """Refuse a prompt behind which there are too few positions; the last token is not read again."""
        if self.most is not None and length + self.tokens - 1 > self.most:
            room = self.most - length + 1
            raise SequenceLengthError(
                f"{prompt} has {length} tokens and is to get {self.tokens} more, and the model takes "
                f"sequences of {self.most}",
                hint=f"pass --generate {room}, or shorter prompts" if room > 0 else "pass shorter prompts",
            )

    def chosen(self, outputs: Sequence[Array], place: int) -> int:
        """Token with the highest score at a place, of equal ones the first."""
        scores = outputs[self.outputs.index(self.logits)]
        if scores.ndim != SCORES or scores.shape[0] != 1 or scores.dtype.kind != "f":
            raise _not_scores(self.logits, f"is {format_shape(scores.shape)} of {scores.dtype}")
        row = scores[0, place]
        if np.isnan(row).any():
            raise MetricError(
                f"the output '{self.logits}' is NaN while prompts are continued",
                hint="leave --generate out, and look at the layers with ptq analyze",
            )
        return int(np.argmax(row))


def continuation_of(
    tokens: int, inputs: Sequence[TensorSpec], ranks: Mapping[str, int | None], carries: Sequence[Carry]
) -> Continuation:
    """Inputs and outputs by which prompts of a model are continued; refuse a model without them.

    ``ranks`` are the axes of its outputs, None where they are not known.
    """
    by_name = {spec.name: spec for spec in inputs}
    wholes = [spec.name for spec in inputs if spec.dtype.kind in "iu" and len(spec.shape) == 2]
    ids, outputs = token_input(wholes), tuple(ranks)
    if ids is None:
        raise MetricError(
            "--generate needs a model that reads tokens, and no input is whole numbers of shape "
            "[batch, tokens]",
            hint=f"leave --generate out; the model's inputs: {', '.join(map(str, inputs))}",
        )
    logits = next((name for name in outputs if name.lower().endswith("logits")), outputs[0])
    if ranks[logits] not in (None, SCORES):
        raise _not_scores(logits, f"has {ranks[logits]} axes")
    spec, positions = by_name[ids], by_name.get(_beside(ids, POSITIONS))
    if spec.shape[0] not in (None, 1) and spec.samples_axis == 0:
        raise MetricError(
            f"--generate runs one prompt at a time, and the model takes batches of {spec.shape[0]}",
            hint="export the model with a dynamic batch axis",
        )
    width = spec.shape[1]
    if carries:
        _require_known(inputs, ids, carries)
        if width not in (None, 1):
            raise MetricError(
                f"--generate adds one token at a time, and '{ids}' takes {width} a step",
                hint="export the model for steps of one token",
            )
        width = None
    limits = (width, longest_of(spec), rows_of(positions))
    return Continuation(
        tokens=tokens,
        ids=ids,
        inputs=tuple(inputs),
        outputs=outputs,
        logits=logits,
        width=width,
        most=min((limit for limit in limits if limit is not None), default=None),
        carries=tuple(carries),
    )


def _require_known(inputs: Sequence[TensorSpec], ids: str, carries: Sequence[Carry]) -> None:
    """Refuse an input of each step that no continuation has."""
    known = {ids, _TYPES, *MADE, *(item.state.name for item in carries)}
    for spec in inputs:
        if spec.name not in known and spec.samples_axis is not None:
            raise CarryError(
                f"--generate cannot make '{spec.name}', which each step reads beside the tokens",
                hint="leave --generate out, or fix the input: "
                f"{entry_option('model.inputs', spec.name, 'VALUE')}",
            )


def _not_scores(name: str, found: str) -> MetricError:
    return MetricError(
        f"--generate needs scores of shape [batch, tokens, vocabulary], and the output '{name}' {found}",
        hint="export the model with such an output, named logits, or leave --generate out",
    )


def _beside(ids: str, name: str) -> str:
    """Name of the mask, the positions or the types of an input of tokens: of a decoder its own."""
    return ids.removesuffix("input_ids") + name if ids.endswith("input_ids") else name


@dataclass(frozen=True)
class Continued:
    """What the models make of one prompt."""

    prompt: str
    of_float: Tokens
    quantized: tuple[Tokens, ...]


def continued_prompts(
    how: Continuation, runs: Runs, dataset: Dataset, progress: ProgressCallback
) -> list[Continued]:
    """Each prompt of the data as the float and all quantized models continue it."""
    found: list[Continued] = []
    with closing(dataset.batches(1)) as batches:
        for item in (_by_steps if how.carries else _by_sequences)(how, runs, batches):
            found.append(item)
            progress(Progress("generate", len(found), None))
    return found


def _by_steps(how: Continuation, runs: Runs, batches: Iterator[Batch]) -> Iterator[Continued]:
    """Read each recording on each model's own states, as the evaluation does, and go on behind its end."""
    own: list[FreeStates] = []
    for batch in batches:
        step = require_steps(batch)
        if step.step == 0:
            own = [FreeStates(how.carries, how.outputs) for _ in runs.quantized]
        given = [states.inputs(step) for states in own]
        outputs = [run(inputs) for run, inputs in zip(runs.quantized, given, strict=True)]
        for states, item in zip(own, outputs, strict=True):
            states.keep(step, item)
        if not step.is_last:
            continue
        prompt = step.names[0].rpartition(" step ")[0]
        how.require_room(prompt, step.step + 1)
        of_float = _behind(how, runs.of_float, step.inputs, runs.of_float(step.inputs))
        quantized = (_behind(how, *parts) for parts in zip(runs.quantized, given, outputs, strict=True))
        yield Continued(prompt, of_float, tuple(quantized))


def _behind(how: Continuation, run: Run, inputs: Mapping[str, Array], outputs: Sequence[Array]) -> Tokens:
    """Tokens that a model adds behind a step, of which the inputs and the outputs are given."""
    tokens = [how.chosen(outputs, -1)]
    while len(tokens) < how.tokens:
        states = {item.state.name: outputs[how.outputs.index(item.output)] for item in how.carries}
        past = cached_positions(how.carries, states)
        made = {spec.name: made_input(spec, 1, past, 1) for spec in how.inputs if spec.name in MADE}
        inputs = {**inputs, **made, **states, how.ids: np.full_like(inputs[how.ids], tokens[-1])}
        outputs = run(dict(inputs))
        tokens.append(how.chosen(outputs, -1))
    return tuple(tokens)


def _by_sequences(how: Continuation, runs: Runs, batches: Iterator[Batch]) -> Iterator[Continued]:
    for batch in batches:
        tokens = _prompt_of(how, batch)
        how.require_room(batch.names[0], len(tokens))
        of_float, *quantized = (
            _grown(how, run, batch.inputs, tokens) for run in (runs.of_float, *runs.quantized)
        )
        yield Continued(batch.names[0], of_float, tuple(quantized))


def _prompt_of(how: Continuation, batch: Batch) -> Tokens:
    """Tokens of a sample that its mask keeps."""
    tokens, mask = batch.inputs[how.ids][0], batch.inputs.get(_beside(how.ids, MASK))
    if mask is not None and mask.ndim == 2:
        tokens = tokens[mask[0, mask.shape[1] - len(tokens) :] != 0]
    if not len(tokens):
        raise EmptyDataError(
            f"the prompt {batch.names[0]} has no token", hint="leave samples out whose mask is 0 everywhere"
        )
    return tuple(tokens.tolist())


def _grown(how: Continuation, run: Run, inputs: Mapping[str, Array], prompt: Tokens) -> Tokens:
    """Tokens that a model adds to a sequence, which each run reads from its beginning."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + how.tokens:
        outputs = run({**inputs, **_arrays(how, inputs, tokens)})
        tokens.append(how.chosen(outputs, len(tokens) - 1))
    return tuple(tokens[len(prompt) :])


def _arrays(how: Continuation, inputs: Mapping[str, Array], tokens: Sequence[int]) -> dict[str, Array]:
    """Inputs of a model for a sequence, filled up at its end to the length that the model fixes."""
    count, own = len(tokens), inputs[how.ids].shape[1]
    rows = {
        how.ids: np.array(tokens),
        _beside(how.ids, MASK): np.ones(count),
        _beside(how.ids, POSITIONS): np.arange(count),
        _beside(how.ids, _TYPES): np.zeros(count),
        CACHE_POSITION: np.arange(count),
    }
    found: dict[str, Array] = {}
    for name, row in rows.items():
        array = inputs.get(name)
        if array is None:
            continue
        if array.ndim == 1:
            found[name] = row.astype(array.dtype)
            continue
        # A cache of fixed length, which is empty, lengthens the mask at its start.
        before = array.shape[1] - own
        found[name] = np.zeros((1, before + (how.width or count)), array.dtype)
        found[name][0, before : before + count] = row
    return found


def first_difference(one: Tokens, other: Tokens) -> int | None:
    """Place of the first token that differs, or None.

    Example:
        >>> first_difference((3, 1, 4), (3, 2, 4)), first_difference((3, 1), (3, 1))
        (1, None)
    """
    return next(
        (place for place, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]), None
    )


def compared_tokens(
    found: Sequence[Continued], model: int, text_of: Callable[[Tokens], str] | None
) -> tuple[Measurement, Generation]:
    """Share of equal tokens of one quantized model, and where prompts begin to differ.

    The interval draws prompts, since the tokens behind a difference depend on it.

    Source: as ``bootstrap_intervals``.
    """
    if not found:
        raise EmptyDataError("there is no prompt to continue", hint="pass data with samples")
    pairs = [(item.of_float, item.quantized[model]) for item in found]
    places, count = [first_difference(*pair) for pair in pairs], len(pairs[0][0])
    rows = np.array([[np.mean(np.equal(*pair))] for pair in pairs])

    def share(sums: Float64Array) -> tuple[Float64Array, ...]:
        return (sums[..., 0] / len(rows),)

    # A flip is a prompt of which no token is equal.
    lost, differing = float(rows.mean() * unseen_share(len(rows))), int(np.count_nonzero(rows < 1))
    (interval,) = bootstrap_intervals(rows, share, reach=lambda *_: [Unseen(lost, 0.0, differing)])
    measured = Measurement(
        name=GENERATED,
        unit="share",
        needs_labels=False,
        higher_is_better=True,
        quantized_value=float(rows.mean()),
        quantized_interval=interval,
    )
    examples = [item for item, place in zip(found, places, strict=True) if place is not None]
    return measured, Generation(
        prompts=len(found),
        tokens=count,
        unchanged=places.count(None),
        median_equal=float(np.median([count if place is None else place for place in places])),
        first_differences=tuple(places[:MOST_LISTED]),
        examples=tuple(_example(item, model, text_of) for item in (examples or found)[:MOST_EXAMPLES]),
    )


def _example(item: Continued, model: int, text_of: Callable[[Tokens], str] | None) -> Example:
    one, other = item.of_float, item.quantized[model]
    return Example(
        prompt=item.prompt,
        of_float=one,
        quantized=other,
        float_text=text_of(one) if text_of is not None else None,
        quantized_text=text_of(other) if text_of is not None else None,
    )
