"""One card per quantized tensor: a histogram, the chosen range, and the ranges that other methods choose."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ptq_cli.evaluation.document.analysis_document import TensorAnalysis
from ptq_cli.report.html.fact_rows import MethodRange, TensorEvidence
from ptq_cli.report.html.interval_charts import Scale, Tick
from ptq_cli.report.text.numbers import format_decibels, format_range, format_share

WIDTH, HEIGHT = 360.0, 96.0  # size of the bars, in units of the drawing
_ROW, AXIS = 14.0, 20.0  # height of a method's row below the bars, and of the axis
_LEFT = 76.0  # width of the column of method names


@dataclass(frozen=True, kw_only=True)
class _Span:
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
    chosen: _Span
    spans: tuple[_Span, ...]
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
    """A card for each tensor, in the order given."""
    found = {item.name: item for item in analyzed if item.kind == "activation"}
    return tuple(_card(index, tensor, found.get(tensor.name)) for index, tensor in enumerate(tensors, 1))


def _card(anchor: int, tensor: TensorEvidence, analyzed: TensorAnalysis | None) -> TensorCard:
    # The drawing covers the values seen, and the chosen range unless it is far wider.
    low = min(tensor.low, max(tensor.chosen.low, 2 * tensor.low))
    high = max(tensor.high, min(tensor.chosen.high, 2 * tensor.high))
    scale = Scale(low=low, high=high, start=_LEFT, end=WIDTH - 8)
    bars, is_log = _bars(tensor, scale)
    first = HEIGHT + _ROW
    spans = tuple(
        _span(item, tensor.values, scale, first + index * _ROW, chosen=item.method == tensor.chosen.method)
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
        height=first + len(spans) * _ROW + AXIS,
        facts=tuple(_facts(tensor, analyzed)),
        finding=analyzed.finding if analyzed is not None else "",
        remedy=analyzed.remedy if analyzed is not None else "",
    )


def _facts(tensor: TensorEvidence, analyzed: TensorAnalysis | None) -> list[str]:
    facts = [f"{tensor.values:,} values"]
    if tensor.zeros:
        facts.append(f"{format_share(tensor.zeros, tensor.values)} are 0 (not drawn)")
    if analyzed is not None:
        facts.append(f"SQNR: accumulated {format_decibels(analyzed.sqnr_accumulated_db)}")
        facts.append(f"isolated {format_decibels(analyzed.sqnr_isolated_db)}")
    return facts


def _span(item: MethodRange, values: int, scale: Scale, y: float, *, chosen: bool) -> _Span:
    return _Span(
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
    """Outline of the bars as a path, and whether their heights are logarithms."""
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
    """Position of the top of a bar; one that holds a value is visible."""
    if count <= 0:
        return int(HEIGHT)
    share = math.log1p(count) / math.log1p(top) if is_log else count / top
    return round(HEIGHT - max(share * (HEIGHT - 4), 1.0))
