"""A sum of floats that no order and no cut of its addends can change."""

import math

UNIT_EXPONENT = 1074
"""All float64 are whole multiples of 2^-1074."""


class ExactSum:
    """The exact sum of float64 numbers, rounded once, when it is read.

    Edge case:
        The sum of nothing is 0. Infinities and NaN are refused.

    Raises:
        ValueError: an addend is not finite.

    Source:
        Neal 2015, "Fast exact summation using small and large superaccumulators".

    Example:
        >>> total = ExactSum()
        >>> for addend in (1e100, 1.0, -1e100):
        ...     total.add(addend)
        >>> total.value
        1.0
    """

    def __init__(self) -> None:
        self._units = 0

    def add(self, addend: float) -> None:
        """Add a number."""
        if not math.isfinite(addend):
            raise ValueError(f"{addend} cannot be added exactly")
        mantissa, exponent = math.frexp(addend)
        # 53 bits are the whole of a mantissa; below the smallest normal number fewer are, and the rest are 0.
        shift = exponent - 53 + UNIT_EXPONENT
        whole = int(mantissa * 2.0**53)
        self._units += whole << shift if shift >= 0 else whole >> -shift

    def merge(self, other: "ExactSum") -> None:
        """Add all that another sum has."""
        self._units += other._units

    @property
    def value(self) -> float:
        """The sum, as the nearest float64; inf beyond the largest."""
        try:
            return self._units / (1 << UNIT_EXPONENT)
        except OverflowError:
            return math.inf if self._units > 0 else -math.inf


def decibels(signal: float, noise: float) -> float:
    """Return ``10 log10(signal / noise)``, as the metric ``sqnr_db`` does.

    Units:
        decibels.

    Edge case:
        No noise is inf, also of no signal; noise without signal is -inf.

    Example:
        >>> decibels(100.0, 1.0), decibels(0.0, 0.0), decibels(0.0, 1.0)
        (20.0, inf, -inf)
    """
    if noise == 0:
        return math.inf
    return 10 * (math.log10(signal) - math.log10(noise)) if signal > 0 else -math.inf
