"""New data beside those of a calibration as text, on the terminal and as a page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ptq_cli.evaluation.interval import Interval
from ptq_cli.monitoring.compared_drift import Picture
from ptq_cli.monitoring.drift import Drift, TensorDrift
from ptq_cli.report.html.interval_charts import Scale, Tick
from ptq_cli.report.html.page_view import render
from ptq_cli.report.html.tensor_cards import HEIGHT, WIDTH, bar_height
from ptq_cli.report.text.numbers import Row, Table, format_decibels, format_range, format_share

# The last three are the first that a narrow terminal leaves out.
_HEADER = (
    "tensor",
    "moved by",
    "chance",
    "clipped",
    "SQNR",
    "before",
    "95 % interval",
    "range",
    "calibrated",
)
_PARTS = 10**9  # a share as a count of so many, for ``format_share``
NO_VALUE = "-"


def drift_table(tensors: Sequence[TensorDrift]) -> Table:
    """A row for each tensor."""
    return Table(_HEADER, tuple(map(_row, tensors)))


def _row(tensor: TensorDrift) -> Row:
    movement = tensor.movement
    chance = movement.chance if movement is not None else None
    return (
        tensor.name,
        f"{movement.distance:.2f}{' *' if movement.moved else ''}" if movement is not None else NO_VALUE,
        f"{chance:.2f}" if chance is not None else NO_VALUE,
        share_text(tensor.clipped),
        _decibels(tensor.sqnr_db),
        _decibels(tensor.calibration_sqnr_db),
        _ends(movement.interval) if movement is not None else NO_VALUE,
        format_range(tensor.low, tensor.high),
        format_range(tensor.calibration_low, tensor.calibration_high),
    )


def share_text(share: float) -> str:
    """Write a share in percent.

    Example:
        >>> share_text(0.0), share_text(0.00123), share_text(1e-12)
        ('0 %', '0.12 %', '<0.0001 %')
    """
    return format_share(max(round(share * _PARTS), 1 if share else 0), _PARTS)


def _decibels(value: float | None) -> str:
    return format_decibels(value).removesuffix(" dB") if value is not None else NO_VALUE


def _ends(interval: Interval | None) -> str:
    return f"{interval.low:.2f} to {interval.high:.2f}" if interval is not None else NO_VALUE


def expected_line(drift: Drift) -> str:
    """SQNR that the noise of the quantized tensors leads to expect; empty if none becomes integers."""
    found = drift.expected
    if found is None:
        return ""
    interval = f" ({_ends(found.interval)})" if found.interval is not None else ""
    text = f"expected SQNR of {'the inputs' if drift.inputs_only else 'all activations'}: "
    text += f"{format_decibels(found.sqnr_db)}{interval}"
    if found.calibration_db is None:
        return text
    loss = found.calibration_db - found.sqnr_db if found.calibration_db != found.sqnr_db else 0.0
    change = f"{abs(loss):.2f} dB {'less' if loss > 0 else 'more'}" if abs(loss) >= 0.005 else "the same"
    return f"{text}, {change} than the {format_decibels(found.calibration_db)} of the calibration".replace(
        "the same than", "the same as"
    )


def verdict_line(drift: Drift) -> str:
    """Verdict, with the reason."""
    if drift.faults:
        return f"FAIL: {drift.faults[0]}"
    if drift.doubt:
        return f"undecided: {drift.doubt}"
    limits = [
        f"at most {100 * drift.max_clipped:g} % clipped" if drift.max_clipped is not None else "",
        f"at least {drift.min_expected_sqnr:g} dB" if drift.min_expected_sqnr is not None else "",
    ]
    kept = " and ".join(filter(None, limits))
    return f"PASS: {kept}" if kept else "PASS: no tensor has moved further than chance explains"


_MOST_ROWS = 3000
CHART_HEIGHT = HEIGHT + 20.0
FINEST = 1e-6  # share below which no bar is drawn: a logarithm needs some smallest value


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
    """Page: one HTML document that loads nothing else, under the policy of a report's page."""
    state: Mapping[str, str] = {"pass": "pass", "fail": "fail"}
    table = drift_table(drift.tensors[:_MOST_ROWS])
    page = {
        "title": f"{drift.samples:,} samples of {drift.source}",
        "state": state.get(drift.verdict, "undecided"),
        "verdict": verdict_line(drift),
        "drift": drift,
        "expected": expected_line(drift),
        "cards": [_card(picture) for picture in pictures],
        "table": table,
        "left_out": max(0, len(drift.tensors) - _MOST_ROWS),
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
