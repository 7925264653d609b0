"""Scores of tokens, walked a few positions at a time: those of a batch would not fit in memory as float64."""

from collections.abc import Iterator

import numpy as np

from ptq_cli.core.errors import MetricError
from ptq_cli.core.tensors import Array, format_shape
from ptq_cli.report.metrics.base import Float64Array, Labels

IGNORED = -100
"""The label of a position that does not count, as PyTorch's cross entropy has it."""

BLOCK = 2**20
"""Scores that are converted to float64 at a time: 8 MiB."""


def require_token_scores(output: Array, name: str) -> None:
    """Refuse an output that is not scores of tokens.

    Args:
        output: of a batch.
        name: the metric's.

    Raises:
        MetricError: it is not [samples, positions, tokens] of floats.

    Example:
        >>> require_token_scores(np.zeros((4, 128, 50)), "perplexity")
    """
    if output.ndim != 3 or output.dtype.kind != "f" or output.shape[2] < 2:
        raise MetricError(
            f"{name} needs an output of shape [samples, positions, tokens], got "
            f"{format_shape(output.shape)} of {output.dtype}",
            hint=f"leave the metric out, or give the output that has the tokens' scores: {name}[OUTPUT]",
        )


def require_counted(rows: Float64Array, name: str) -> None:
    """Refuse rows, [samples, 2], of which no position counts.

    Raises:
        MetricError: the second column adds up to 0.

    Example:
        >>> require_counted(np.array([[0.0, 3.0]]), "perplexity")
    """
    if not rows[:, 1].any():
        raise MetricError(
            f"{name} has no position to count in {len(rows)} samples",
            hint="pass samples of two tokens or more, whose attention mask is not 0",
        )


def negative_log_likelihood(scores: Array, tokens: Labels) -> Float64Array:
    """Return ``-log softmax(scores)`` of each position's token.

    Shapes:
        scores [positions, tokens], tokens [positions]; the result is [positions].

    Units:
        nats.

    Edge case:
        Computed in float64, from as many positions at a time as fit into 8 MiB: no value depends on how many.

    Source:
        Bridle 1990, "Probabilistic interpretation of feedforward classification network outputs" (softmax).

    Example:
        >>> negative_log_likelihood(np.zeros((2, 4), np.float32), np.array([0, 3])).round(4).tolist()
        [1.3863, 1.3863]
    """
    parts = [_of_block(*block) for block in _blocks(scores, tokens)]
    return np.concatenate(parts) if parts else np.empty(0)


def _blocks(scores: Array, tokens: Labels) -> Iterator[tuple[Array, Labels]]:
    together = max(1, BLOCK // max(1, scores.shape[1]))
    for start in range(0, len(scores), together):
        yield scores[start : start + together], tokens[start : start + together]


def _of_block(scores: Array, tokens: Labels) -> Float64Array:
    shifted = scores.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    chosen = shifted[np.arange(len(shifted)), tokens]
    np.exp(shifted, out=shifted)
    found: Float64Array = np.log(shifted.sum(axis=1)) - chosen
    return found
