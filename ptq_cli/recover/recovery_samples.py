"""The samples of the calibration data that a pass learns from, and those that it is judged by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ptq_cli.core.tensors import Array

JUDGED = 3 / 8
"""Least share of the samples that judge whether a model as a whole is better."""


@dataclass(frozen=True, kw_only=True)
class RecoverySamples:
    """What a pass learns from, and what it is judged by.

    Attributes:
        fit, decide: the model's inputs, in pieces of some samples each; no sample is in both.
    """

    fit: Sequence[Mapping[str, Array]]
    decide: Sequence[Mapping[str, Array]]

    @property
    def pieces(self) -> list[Mapping[str, Array]]:
        """All of them, those held out last."""
        return [*self.fit, *self.decide]

    @property
    def judge(self) -> list[Mapping[str, Array]]:
        """The last of them, which judge whether the model as a whole is better."""
        return self.pieces[self.first_judged :]

    @property
    def first_judged(self) -> int:
        """The first of the last pieces that have three eighths of the samples.

        Of fewer one or two make most of the noise; that what was learned fits its own samples alone is rarer.

        Example:
            >>> import numpy as np
            >>> one, part = {"x": np.zeros((28, 1))}, {"x": np.zeros((4, 1))}
            >>> RecoverySamples(fit=[one] * 4, decide=[part] * 4).first_judged
            2
        """
        sizes = [samples_in(piece) for piece in self.pieces]
        enough = JUDGED * sum(sizes)
        fits = range(len(self.fit) + 1)
        return max(first for first in fits if not first or sum(sizes[first:]) >= enough)


def samples_in(piece: Mapping[str, Array]) -> int:
    """Return how many samples a piece has; 1 if none of its arrays has an axis."""
    return max((len(array) for array in piece.values() if array.ndim), default=1)
