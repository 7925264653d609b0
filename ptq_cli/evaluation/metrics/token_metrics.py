"""Metrics of language models: the share of right tokens or sequences, perplexity, embeddings."""

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from ptq_cli.core.errors import MetricError
from ptq_cli.core.tensors import Array, format_shape
from ptq_cli.evaluation.bootstrap import Float64Array, unseen_share
from ptq_cli.evaluation.document.measurement import Unit
from ptq_cli.evaluation.metrics.base import Labels, Recorded, SampleSums, Targets
from ptq_cli.evaluation.metrics.similarities import cosines

IGNORED = -100  # The label of a position that does not count, as PyTorch's cross entropy has it
_BLOCK = 2**20  # Scores that are converted to float64 at a time: 8 MiB


def require_token_scores(output: Array, name: str) -> None:
    """Refuse an output that is not scores of tokens."""
    if output.ndim != 3 or output.dtype.kind != "f" or output.shape[2] < 2:
        raise MetricError(
            f"{name} needs an output of shape [samples, positions, tokens], got "
            f"{format_shape(output.shape)} of {output.dtype}",
            hint=f"leave the metric out, or give the output that has the tokens' scores: {name}[OUTPUT]",
        )


def require_counted(rows: Float64Array, name: str) -> None:
    """Refuse rows, [samples, 2], of which no position counts."""
    if not rows[:, 1].any():
        raise MetricError(
            f"{name} has no position to count in {len(rows)} samples",
            hint="pass samples of two tokens or more, whose attention mask is not 0",
        )


def negative_log_likelihood(scores: Array, tokens: Labels) -> Float64Array:
    """Return ``-log softmax(scores)`` of each position's token.

    Shapes: scores [positions, tokens], tokens [positions]; the result is [positions].
    Units: nats.
    Edge case: Computed in float64, from as many positions at a time as fit into 8 MiB: no value depends on
        how many.

    Source: Bridle 1990, "Probabilistic interpretation of feedforward classification network outputs"
        (softmax).

    Example:
        >>> negative_log_likelihood(np.zeros((2, 4), np.float32), np.array([0, 3])).round(4).tolist()
        [1.3863, 1.3863]
    """
    parts = [_of_block(*block) for block in _blocks(scores, tokens)]
    return np.concatenate(parts) if parts else np.empty(0)


def _blocks(scores: Array, tokens: Labels) -> Iterator[tuple[Array, Labels]]:
    together = max(1, _BLOCK // max(1, scores.shape[1]))
    for start in range(0, len(scores), together):
        yield scores[start : start + together], tokens[start : start + together]


def _of_block(scores: Array, tokens: Labels) -> Float64Array:
    shifted = scores.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    chosen = shifted[np.arange(len(shifted)), tokens]
    np.exp(shifted, out=shifted)
    found: Float64Array = np.log(shifted.sum(axis=1)) - chosen
    return found


class _OfPositions(Recorded):
    """A metric whose rows end with how many positions of a sample count."""

    def compute(self) -> float:
        """The value over all positions so far."""
        require_counted(self.counted_rows(), self.name)
        return super().compute()

    def of_sums(self, sums: Float64Array) -> Float64Array:
        """Return the mean over positions."""
        mean: Float64Array = sums[..., 0] / sums[..., 1]
        return mean


class TokenAccuracy(_OfPositions):
    """Share of positions at which the token with the highest score is the wanted one.

    Args:
        name: what the report calls it.
        targets: which tokens are wanted.

    Shapes: update: output [N, T, tokens]; labels [N, T], the wanted token of each position, or -100.
    Units: a share, 0 to 1.
    Edge case: A position whose label is -100 does not count; of equal scores the lowest token is chosen.

    Source: Devlin et al. 2019, "BERT: pre-training of deep bidirectional transformers", section 3.1, for
        masked tokens; Stanton et al. 2021, "Does knowledge distillation really work?", for the agreement of
        models.

    Example:
        >>> accuracy = TokenAccuracy("masked_top1", "marked tokens")
        >>> accuracy.update(np.eye(3, dtype=np.float32)[None], np.array([[0, 2, -100]]))
        >>> accuracy.compute()
        0.5
    """

    unit: ClassVar[Unit] = "share"
    higher_is_better: ClassVar[bool] = True

    def __init__(self, name: str, targets: Targets) -> None:
        super().__init__()
        self.name = name
        self.targets: Targets = targets

    def update(self, output: Array, labels: Labels) -> None:
        """Count one batch."""
        require_token_scores(output, self.name)
        counted = labels != IGNORED
        right = (np.argmax(output, axis=2) == labels) & counted
        self._add(np.stack([right.sum(axis=1), counted.sum(axis=1)], axis=1).astype(np.float64))

    def resampling(self) -> SampleSums:
        """Right and counted positions of each sample; a flip is a sample with none right."""
        flipped = self.compute() * (1 - float(unseen_share(self.count)))
        return SampleSums(self.rows, self.of_sums, flipped=flipped)


class ExactMatch(Recorded):
    """Share of sequences of which every position has the wanted token.

    Args:
        against: whose tokens are wanted: ``"float"`` for the float model's, ``"labels"`` for the data's.

    Shapes: update: output [N, T, tokens]; labels [N, T], the wanted token of each position, or -100.
    Units: a share, 0 to 1.
    Edge case: A position whose label is -100 does not count; a sequence without any other is right.

    Raises:
        MetricError: the output is not scores of tokens, or no sample was counted.
        ValueError: ``against`` is something else.

    Source: Rajpurkar et al. 2016, "SQuAD: 100,000+ questions for machine comprehension of text", section 6.1.

    Example:
        >>> match = ExactMatch()
        >>> scores = np.eye(3, dtype=np.float32)[[[0, 1, 2], [0, 1, 1]]]
        >>> match.update(scores, np.array([[0, 1, -100], [0, 2, 1]]))
        >>> match.compute()
        0.5
    """

    unit: ClassVar[Unit] = "share"
    higher_is_better: ClassVar[bool] = True
    name = "exact_match"

    def __init__(self, against: str = "float") -> None:
        super().__init__()
        if against not in ("float", "labels"):
            raise ValueError(f"against is '{against}', expected 'float' or 'labels'")
        self.targets: Targets = "float tokens" if against == "float" else "marked tokens"

    def update(self, output: Array, labels: Labels) -> None:
        """Count one batch."""
        require_token_scores(output, "exact_match")
        right = (np.argmax(output, axis=2) == labels) | (labels == IGNORED)
        self._add(right.all(axis=1).astype(np.uint8)[:, None])


class Perplexity(_OfPositions):
    """``exp`` of the mean over tokens of ``-log p(token | tokens before it)``.

    Shapes: update: output [N, T, tokens]; labels [N, T], the token that follows each position, or -100.
    Units: none, 1 or more; the number of equally likely tokens that would be as hard to guess.
    Edge case: A position whose label is -100 does not count. The mean is over tokens, so that long sequences
        count more than short ones. An overflow is inf.

    Source: Jelinek et al. 1977, "Perplexity: a measure of the difficulty of speech recognition tasks".

    Example:
        >>> perplexity = Perplexity()
        >>> perplexity.update(np.zeros((1, 3, 4), np.float32), np.array([[1, 2, -100]]))
        >>> round(perplexity.compute(), 6)
        4.0
    """

    unit: ClassVar[Unit] = "number"
    higher_is_better: ClassVar[bool] = False
    targets: ClassVar[Targets] = "tokens"
    name = "perplexity"

    def update(self, output: Array, labels: Labels) -> None:
        """Add one batch, a sequence at a time."""
        require_token_scores(output, "perplexity")
        rows = np.empty((len(output), 2))
        for row, scores, tokens in zip(rows, output, labels, strict=True):
            counted = tokens != IGNORED
            row[:] = negative_log_likelihood(scores[counted], tokens[counted]).sum(), counted.sum()
        self._add(rows)

    def of_sums(self, sums: Float64Array) -> Float64Array:
        """Return the value from sums of each sequence's surprise and number of tokens."""
        with np.errstate(over="ignore"):
            return np.exp(super().of_sums(sums))


class EmbeddingCosine(Recorded):
    """Mean over samples of the cosine between the embeddings of the quantized and of the float model.

    An output [N, T, features] is averaged over the positions that the attention mask names, before.

    Shapes: update: output and labels [N, features], where the labels are the float model's embeddings.
    Units: none, -1 to 1.
    Edge case: As ``Cosine``: two zero vectors have 1, one zero vector has 0.

    Source: Reimers and Gurevych 2019, "Sentence-BERT", section 3 (mean of the tokens, compared by cosine).

    Example:
        >>> cosine = EmbeddingCosine()
        >>> cosine.update(np.array([[1.0, 0.0], [0.0, 2.0]]), np.array([[3.0, 0.0], [2.0, 0.0]]))
        >>> cosine.compute()
        0.5
    """

    unit: ClassVar[Unit] = "number"
    higher_is_better: ClassVar[bool] = True
    targets: ClassVar[Targets] = "float embeddings"
    name = "cosine_of_embeddings"

    def update(self, output: Array, labels: Labels) -> None:
        """Add one batch's cosines."""
        found = cosines(output.astype(np.float64), labels.astype(np.float64))
        self._add(found[:, None])
