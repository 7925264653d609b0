"""The SQNR over the steps of recordings as two lines."""

import math
import re
from dataclasses import replace

from ptq_cli.evaluation.document.stream import StepDrift, StepErrors, Stream
from ptq_cli.report.html.charts.step_chart import BOTTOM, LEFT, RIGHT, TOP, step_chart

DRIFT = StepDrift(metric="sqnr_db", unit="decibel", first=40.0, last=20.0, loss=20.0, forced_loss=1.0)


def stream(own: list[float], forced: float = 40.0) -> Stream:
    curve = tuple(
        StepErrors(step=step, steps=1, samples=3, free={"sqnr_db": value}, forced={"sqnr_db": forced})
        for step, value in enumerate(own)
    )
    return Stream(
        carried={"h_out": "h"},
        recordings=3,
        longest=len(own),
        forced=(),
        curve=curve,
        worst_step=len(own) - 1,
        drifts=(DRIFT,),
    )


def points(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", path)]


def test_growing_errors_descend_from_left_to_right() -> None:
    chart = step_chart(stream([40.0, 35.0, 30.0, 24.0]))
    xs, ys = zip(*points(chart.own), strict=True)
    assert xs == tuple(sorted(xs)) and ys == tuple(sorted(ys)), "lower is worse"
    assert all(LEFT <= x <= RIGHT for x in xs) and all(TOP <= y <= BOTTOM for y in ys)
    assert {y for _, y in points(chart.forced)} == {ys[0]}
    assert chart.caption == "Worst at step 3."


def test_a_step_that_is_almost_exact_does_not_squeeze_the_others() -> None:
    chart = step_chart(stream([138.0, 38.0, 35.0, 30.0, 33.0, 24.0]))
    ys = [y for _, y in points(chart.own)]
    assert ys[0] == TOP and max(ys) - ys[1] > (BOTTOM - TOP) / 2
    assert chart.caption.endswith("Values above 40.8 dB are drawn at the upper end.")


def test_there_is_no_line_without_two_finite_values() -> None:
    assert step_chart(stream([math.inf, 30.0])) is None
    assert step_chart(replace(stream([40.0, 30.0]), drifts=())) is None
    assert len(points(step_chart(stream([40.0, math.nan, 30.0])).own)) == 2
