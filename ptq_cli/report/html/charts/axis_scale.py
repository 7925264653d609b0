"""From values to positions in a drawing, and the round numbers on an axis."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ptq_cli.core.words import format_count
from ptq_cli.evaluation.document.tensor_rows import TensorAnalysis
from ptq_cli.report.html.evidence import MethodRange, TensorEvidence
from ptq_cli.report.text.tables import format_decibels, format_range, format_share

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


# One card per tensor: a histogram, the chosen range, and the ranges that other methods choose.


WIDTH, HEIGHT = 360.0, 96.0
CHOSEN_ROW, ROW, AXIS = 14.0, 14.0, 20.0
LEFT = 76.0
"""Width of the column of method names."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """A method's range as positions in the drawing, and as text."""

    method: str
    y: float
    low: float
    high: float
    range: str
    sqnr: str
    clipped: str
    chosen: bool


@dataclass(frozen=True, kw_only=True)
class TensorCard:
    """A tensor's drawing and its texts."""

    anchor: int
    name: str
    format: str
    range: str
    chosen: Span
    spans: tuple[Span, ...]
    bars: str
    is_log: bool
    ticks: tuple[Tick, ...]
    height: float
    facts: tuple[str, ...]
    finding: str
    remedy: str


def tensor_cards(
    tensors: Sequence[TensorEvidence], analyzed: Sequence[TensorAnalysis] = ()
) -> tuple[TensorCard, ...]:
    """Return a card for each tensor, in the order given."""
    found = {item.name: item for item in analyzed if item.kind == "activation"}
    return tuple(_card(index, tensor, found.get(tensor.name)) for index, tensor in enumerate(tensors, 1))


def _card(anchor: int, tensor: TensorEvidence, analyzed: TensorAnalysis | None) -> TensorCard:
    low, high = _drawn(tensor)
    scale = Scale(low=low, high=high, start=LEFT, end=WIDTH - 8)
    bars, is_log = _bars(tensor, scale)
    first = HEIGHT + CHOSEN_ROW
    spans = tuple(
        _span(item, tensor.values, scale, first + index * ROW, chosen=item.method == tensor.chosen.method)
        for index, item in enumerate(tensor.ranges, 1)
    )
    return TensorCard(
        anchor=anchor,
        name=tensor.name,
        format=tensor.format,
        range=format_range(tensor.low, tensor.high),
        chosen=_span(tensor.chosen, tensor.values, scale, first, chosen=True),
        spans=spans,
        bars=bars,
        is_log=is_log,
        ticks=scale.ticks(5),
        height=first + len(spans) * ROW + AXIS,
        facts=tuple(_facts(tensor, analyzed)),
        finding=analyzed.finding if analyzed is not None else "",
        remedy=analyzed.remedy if analyzed is not None else "",
    )


def _drawn(tensor: TensorEvidence) -> tuple[float, float]:
    """Return what the drawing covers: the values seen, and the chosen range unless it is far wider."""
    low = min(tensor.low, max(tensor.chosen.low, 2 * tensor.low))
    high = max(tensor.high, min(tensor.chosen.high, 2 * tensor.high))
    return low, high


def _facts(tensor: TensorEvidence, analyzed: TensorAnalysis | None) -> list[str]:
    facts = [f"{tensor.values:,} values"]
    if tensor.zeros:
        facts.append(f"{format_share(tensor.zeros, tensor.values)} are 0 (not drawn)")
    if analyzed is not None:
        facts.append(f"SQNR: accumulated {format_decibels(analyzed.sqnr_accumulated_db)}")
        facts.append(f"isolated {format_decibels(analyzed.sqnr_isolated_db)}")
    return facts


def _span(item: MethodRange, values: int, scale: Scale, y: float, *, chosen: bool) -> Span:
    return Span(
        method=item.method,
        y=y,
        low=scale.at(item.low),
        high=scale.at(item.high),
        range=format_range(item.low, item.high),
        sqnr=format_decibels(item.sqnr_db) if item.sqnr_db is not None else "",
        clipped=format_share(item.clipped, values) if item.clipped is not None else "",
        chosen=chosen,
    )


def _bars(tensor: TensorEvidence, scale: Scale) -> tuple[str, bool]:
    """Return the outline of the bars as a path, and whether their heights are logarithms."""
    top = max(tensor.counts, default=0.0)
    if top <= 0:
        return "", False
    held = [count for count in tensor.counts if count > 0]
    # A log scale, if a linear one would make a quarter of the bars that are not empty invisible.
    is_log = 4 * sum(count < top / HEIGHT for count in held) >= len(held)
    width = (tensor.high - tensor.low) / len(tensor.counts)
    path = [f"M{scale.at(tensor.low):g} {HEIGHT:g}"]
    for index, count in enumerate(tensor.counts, 1):
        path.append(f"V{bar_height(count, top, is_log=is_log)}H{scale.at(tensor.low + index * width):g}")
    return f"{''.join(path)}V{HEIGHT:g}Z", is_log


def bar_height(count: float, top: float, *, is_log: bool) -> int:
    """Return the position of the top of a bar."""
    if count <= 0:
        return int(HEIGHT)
    share = math.log1p(count) / math.log1p(top) if is_log else count / top
    # A bin that holds a value is visible.
    return round(HEIGHT - max(share * (HEIGHT - 4), 1.0))
