"""From values to positions in a drawing, and the round numbers on an axis."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ptq_cli.core.short_numbers import format_count

CLEAN_STEPS = (1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True)
class Tick:
    """A mark on an axis: its position and its label."""

    at: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A linear or logarithmic map from values to positions.

    Attributes:
        low, high: the values at the ends; positive on a logarithmic scale.
        start, end: the positions of the ends in the drawing.
        log: whether the scale is logarithmic.

    Example:
        >>> Scale(low=0.0, high=10.0, start=100.0, end=200.0).at(5.0)
        150.0
        >>> Scale(low=1.0, high=100.0, start=0.0, end=50.0, log=True).at(10.0)
        25.0
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """Return the position of a value, rounded to a tenth; a value beyond an end is put at the end."""
        low, high = (math.log10(end) if self.log else end for end in (self.low, self.high))
        held = min(max(value, self.low), self.high)
        share = ((math.log10(held) if self.log else held) - low) / (high - low) if high > low else 0.5
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self, count: int) -> tuple[Tick, ...]:
        """Return about ``count`` marks at round values."""
        values = _decades(self.low, self.high) if self.log else ()
        if len(values) < 2:
            values = nice_values(self.low, self.high, count)
        return tuple(Tick(self.at(value), format_count(value)) for value in values)


def nice_values(low: float, high: float, count: int) -> tuple[float, ...]:
    """Return about ``count`` round values within [low, high].

    Edge case:
        A single value if both ends are the same.

    Example:
        >>> nice_values(0.0, 6.1, 4)
        (0.0, 2.0, 4.0, 6.0)
        >>> nice_values(3.0, 3.0, 4)
        (3.0,)
    """
    if not high > low:
        return (low,)
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * clean for clean in CLEAN_STEPS if power * clean >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(index * step for index in range(first, last + 1))


def widened(low: float, high: float) -> tuple[float, float]:
    """Return a range with a twentieth of its width added on each side; a range of width 0 gets some width.

    Example:
        >>> widened(0.0, 20.0), widened(4.0, 4.0)
        ((-1.0, 21.0), (3.8, 4.2))
    """
    margin = (high - low) / 20 or abs(high) / 20 or 1.0
    return low - margin, high + margin


def largest_in_frame(values: Sequence[float]) -> float:
    """Return the largest value that does not lie far above the others.

    An axis that ends there still shows the others apart; what lies beyond is drawn at its end.

    Edge case:
        The largest of all if the middle half of the values are equal.

    Source: the outer fence of Tukey, Exploratory Data Analysis, 1977, chapter 2.

    Example:
        >>> largest_in_frame([20.0, 22.0, 25.0, 30.0, 138.0])
        30.0
    """
    ordered = sorted(values)
    first, third = ordered[len(ordered) // 4], ordered[3 * len(ordered) // 4]
    fence = third + 3 * (third - first)
    return max(value for value in ordered if value <= fence or first == third)


def _decades(low: float, high: float) -> tuple[float, ...]:
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    every = max(1, math.ceil((last - first) / 5))
    return tuple(10.0**power for power in range(first, last + 1, every))
