"""What a method decides."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Choice:
    """A range that a method chose.

    Attributes:
        low, high: its ends, which hold 0 between them; ``-amax`` and ``amax`` where it is symmetric.
        candidates: how many ranges the method could choose from, or None where it computes one and does not
            search. With one candidate it chose nothing: the range is the whole one.

    Units:
        low, high: as the tensor's values.

    Example:
        >>> Choice(-0.5, 2.0).amax, symmetric_choice(2.0).low
        (2.0, -2.0)
    """

    low: float
    high: float
    candidates: int | None = None

    @property
    def amax(self) -> float:
        """The larger end's magnitude."""
        return max(-self.low, self.high)


def symmetric_choice(amax: float, candidates: int | None = None) -> Choice:
    """Return the range ``[-amax, amax]``.

    Example:
        >>> symmetric_choice(3.0, candidates=2)
        Choice(low=-3.0, high=3.0, candidates=2)
    """
    return Choice(-amax, amax, candidates)
