"""The page of new data beside those of a calibration: a table of all tensors, and the histograms of some."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ptq_cli.monitoring.compared_drift import Picture
from ptq_cli.monitoring.drift_document import Drift
from ptq_cli.monitoring.drift_table import drift_table, expected_line, verdict_line
from ptq_cli.report.html.charts.axis_scale import HEIGHT, WIDTH, Scale, Tick, bar_height
from ptq_cli.report.html.page_view import render

MOST_ROWS = 3000
CHART_HEIGHT = HEIGHT + 20.0
FINEST = 1e-6
"""Share below which no bar is drawn: a logarithm needs some smallest value."""


@dataclass(frozen=True, kw_only=True)
class DriftCard:
    """Two histograms of a tensor as positions in the drawing.

    Attributes:
        old, new: outlines; the calibration's is filled.
        low, high: the ends of the quantizer's range.
    """

    name: str
    old: str
    new: str
    low: float
    high: float
    ticks: tuple[Tick, ...]


def render_drift(drift: Drift, pictures: Sequence[Picture]) -> str:
    """Return the page: one HTML document that loads nothing else, under the policy of a report's page."""
    state: Mapping[str, str] = {"pass": "pass", "fail": "fail"}
    table = drift_table(drift.tensors[:MOST_ROWS])
    page = {
        "title": f"{drift.samples:,} samples of {drift.source}",
        "state": state.get(drift.verdict, "undecided"),
        "verdict": verdict_line(drift),
        "drift": drift,
        "expected": expected_line(drift),
        "cards": [_card(picture) for picture in pictures],
        "table": table,
        "left_out": max(0, len(drift.tensors) - MOST_ROWS),
        "height": CHART_HEIGHT,
    }
    return render("drift.html.jinja", page)


def _card(picture: Picture) -> DriftCard:
    scale = Scale(low=picture.edges[0], high=picture.edges[-1], start=8.0, end=WIDTH - 8)
    # Densities, because cells beyond the range are wider than those within.
    widths = np.diff(picture.edges)
    both = [share / widths * widths.sum() for share in (picture.calibrated, picture.new)]
    top = max(float(np.max(density)) for density in both) / FINEST
    outlines = []
    for density in both:
        path = [f"M{scale.at(picture.edges[0]):g} {HEIGHT:g}"]
        for value, edge in zip(density, picture.edges[1:], strict=True):
            path.append(f"V{bar_height(float(value) / FINEST, top, is_log=True)}H{scale.at(edge):g}")
        outlines.append(f"{''.join(path)}V{HEIGHT:g}")
    return DriftCard(
        name=picture.name,
        old=f"{outlines[0]}Z",
        new=outlines[1],
        low=scale.at(picture.low),
        high=scale.at(picture.high),
        ticks=scale.ticks(5),
    )
