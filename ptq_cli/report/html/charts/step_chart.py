"""SQNR over the steps of recordings, on a model's own states and on the float model's, as two lines."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ptq_cli.evaluation.document.stream import Stream
from ptq_cli.report.html.charts.axis_scale import Scale, Tick, largest_in_frame, widened

LEFT, RIGHT, TOP, BOTTOM = 54.0, 540.0, 14.0, 260.0  # positions of the axes' ends, in a drawing of 560 x 300


@dataclass(frozen=True, kw_only=True)
class StepChart:
    """Two lines as SVG paths, the marks of the axes, and the caption."""

    own: str
    forced: str
    ticks_x: tuple[Tick, ...]
    ticks_y: tuple[Tick, ...]
    caption: str


def step_chart(stream: Stream) -> StepChart | None:
    """SQNR of the first output by step.

    Edge case: None with fewer than two finite values on the model's own states.
    """
    if not stream.drifts:
        return None
    name = stream.drifts[0].metric
    own = _finite((item.step, item.free.get(name, math.nan)) for item in stream.curve)
    forced = _finite((item.step, item.forced.get(name, math.nan)) for item in stream.curve)
    if len(own) < 2:
        return None
    values = [value for _, value in own + forced]
    highest = largest_in_frame(values)
    low, high = widened(min(values), highest)
    along = Scale(low=1.0, high=float(stream.longest), start=LEFT, end=RIGHT)
    up = Scale(low=low, high=high, start=BOTTOM, end=TOP)
    beyond = f" Values above {high:.1f} dB are drawn at the upper end." if max(values) > highest else ""
    return StepChart(
        own=_path(own, along, up),
        forced=_path(forced, along, up),
        ticks_x=along.ticks(6),
        ticks_y=up.ticks(5),
        caption=f"Worst at step {stream.worst_step}.{beyond}",
    )


def _finite(values: Iterable[tuple[int, float]]) -> list[tuple[int, float]]:
    return [(step, value) for step, value in values if math.isfinite(value)]


def _path(points: Sequence[tuple[int, float]], along: Scale, up: Scale) -> str:
    return " ".join(
        f"{'L' if index else 'M'}{along.at(step):g} {up.at(value):g}"
        for index, (step, value) in enumerate(points)
    )
