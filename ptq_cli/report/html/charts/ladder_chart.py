"""The candidates of a tuning as a chart: their SQNR from the first to the last."""

import math

from ptq_cli.report.document.ladder import Ladder, LadderStep
from ptq_cli.report.html.charts.axis_scale import Scale, Tick, widened
from ptq_cli.report.html.charts.depth_chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Chart, Point
from ptq_cli.report.text.ladder_table import result_of, verdict_of

EDGE = 40.0
"""Room for half of the first and of the last name."""
MOST_NUMBERS = 12
"""Numbers that fit below the axis on a phone."""


def ladder_chart(ladder: Ladder) -> Chart | None:
    """Return the SQNR of each candidate, in the order in which they were tried.

    Points that the line goes through were better than all before them; the others are those that were left
    out.

    Edge case:
        None if no candidate has a finite SQNR; one that changes nothing has no point.
    """
    found = [(index, step) for index, step in enumerate(ladder.steps) if math.isfinite(step.sqnr_db)]
    if not found:
        return None
    last = max(1, len(ladder.steps) - 1)
    every = math.ceil(len(ladder.steps) / MOST_NUMBERS)
    along = Scale(low=0.0, high=float(last), start=LEFT + EDGE, end=WIDTH - RIGHT - EDGE)
    values = [step.sqnr_db for _, step in found]
    low, high = widened(min(values), max(values))
    up = Scale(low=low, high=high, start=HEIGHT - BOTTOM, end=TOP)
    points = [(step, _point(along.at(index), up, step, index == ladder.chosen)) for index, step in found]
    kept = tuple(point for step, point in points if step.kept)
    return Chart(
        label_x="candidates, in the order in which they were tried",
        label_y="SQNR (dB)",
        ticks_x=tuple(Tick(along.at(index), str(index + 1)) for index in range(0, len(ladder.steps), every)),
        ticks_y=up.ticks(5),
        points=kept,
        others=tuple(point for step, point in points if not step.kept),
        line="".join(f"{'L' if index else 'M'}{point.x:g} {point.y:g}" for index, point in enumerate(kept)),
        summary=f"{verdict_of(ladder)}",
    )


def _point(x: float, up: Scale, step: LadderStep, chosen: bool) -> Point:
    return Point(
        x=x,
        y=up.at(step.sqnr_db),
        text=f"{step.name}: {step.sqnr_db:.1f} dB, {result_of(step, chosen=chosen)}",
        label=step.name,
    )
