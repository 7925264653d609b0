"""Linear axes of a drawing: positions of values, and marks at round numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ptq_cli.core.words import format_count


@dataclass(frozen=True)
class Tick:
    """A mark on an axis: its position and its label."""

    at: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Linear map from the values ``low`` to ``high`` to the positions ``start`` to ``end`` in a drawing."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Position of a value, rounded to a tenth; a value beyond an end is put at the end."""
        held = min(max(value, self.low), self.high)
        share = (held - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self, count: int) -> tuple[Tick, ...]:
        """About ``count`` marks at round values."""
        values = nice_values(self.low, self.high, count)
        return tuple(Tick(self.at(value), format_count(value)) for value in values)


def nice_values(low: float, high: float, count: int) -> tuple[float, ...]:
    """About ``count`` round values within [low, high]; a single one if both ends are the same."""
    if not high > low:
        return (low,)
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * clean for clean in (1.0, 2.0, 5.0, 10.0) if power * clean >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(index * step for index in range(first, last + 1))


def widened(low: float, high: float) -> tuple[float, float]:
    """Range with a twentieth of its width added on each side; a range of width 0 gets some width.

    Example:
        >>> widened(0.0, 20.0), widened(4.0, 4.0)
        ((-1.0, 21.0), (3.8, 4.2))
    """
    margin = (high - low) / 20 or abs(high) / 20 or 1.0
    return low - margin, high + margin


def largest_in_frame(values: Sequence[float]) -> float:
    """Largest value that does not lie far above the others; the largest of all if the middle half are equal.

    An axis that ends there still shows the others apart; what lies beyond is drawn at its end.

    Source: the outer fence of Tukey, Exploratory Data Analysis, 1977, chapter 2.

    Example:
        >>> largest_in_frame([20.0, 22.0, 25.0, 30.0, 138.0])
        30.0
    """
    ordered = sorted(values)
    first, third = ordered[len(ordered) // 4], ordered[3 * len(ordered) // 4]
    fence = third + 3 * (third - first)
    return max(value for value in ordered if value <= fence or first == third)
