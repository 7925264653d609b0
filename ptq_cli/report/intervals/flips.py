"""Samples that only one of two models gets right, and the exact test on them."""

from dataclasses import dataclass
from typing import Annotated

from ptq_cli.core.documents.json_values import AtLeast

Count = Annotated[int, AtLeast(0)]


@dataclass(frozen=True)
class Flips:
    """How many samples were right before and wrong after quantization, and the other way round.

    Only these make the models' shares differ: samples on which both agree cancel.

    Attributes:
        samples: how many both models saw.
        lost: right by the float model alone.
        gained: right by the quantized model alone.
        p_value: p-value of the exact McNemar test; see ``mcnemar_p_value``.

    Example:
        >>> flips = Flips.counted(samples=1000, lost=12, gained=5)
        >>> flips.drop, round(flips.p_value, 3)
        (0.007, 0.143)
    """

    samples: Annotated[int, AtLeast(1)]
    lost: Count
    gained: Count
    p_value: float

    @classmethod
    def counted(cls, samples: int, lost: int, gained: int) -> "Flips":
        """Return the counts with their test."""
        return cls(samples, lost, gained, mcnemar_p_value(lost, gained))

    @property
    def drop(self) -> float:
        """The share before minus the share after."""
        return (self.lost - self.gained) / self.samples


def mcnemar_p_value(lost: int, gained: int) -> float:
    """Return how likely flips at least as one-sided are if quantization favors neither side.

    Each flip is then a toss of a coin: ``min(1, 2 P(X <= min(lost, gained)))`` for X binomial with
    ``lost + gained`` tosses. Computed in integers, so exact except for one division.

    Args:
        lost: samples that were right and are wrong.
        gained: samples that were wrong and are right.

    Units:
        a probability, two-sided.

    Edge case:
        1 without any flip.

    Source:
        McNemar 1947, "Note on the sampling error of the difference between correlated proportions or
        percentages"; the exact form as in Fagerland, Lydersen and Laake 2014, "Recommended tests and
        confidence intervals for paired binomial proportions", section 4.2.

    Example:
        >>> mcnemar_p_value(7, 1)
        0.0703125
    """
    flips, fewer = lost + gained, min(lost, gained)
    ways = total = 1
    for count in range(1, fewer + 1):
        ways = ways * (flips - count + 1) // count
        total += ways
    # Not 2**flips, whose type depends on the sign of the exponent.
    return min(1.0, 2 * total / (1 << flips))
