"""New data beside those of a calibration, as text: a row for each tensor, and the verdict."""

from collections.abc import Sequence

from ptq_cli.evaluation.interval import Interval
from ptq_cli.monitoring.drift_document import Drift, TensorDrift
from ptq_cli.report.text.summary import Row, Table
from ptq_cli.report.text.tables import format_decibels, format_range, format_share

HEADER = ("tensor", "moved by", "chance", "clipped", "SQNR", "before", "95 % interval", "range", "calibrated")
"""The last three are the first that a narrow terminal leaves out."""
PARTS = 10**9
"""A share as a count of so many, for ``format_share``."""
NO_VALUE = "-"


def drift_table(tensors: Sequence[TensorDrift]) -> Table:
    """Return a row for each tensor."""
    return Table(HEADER, tuple(map(_row, tensors)))


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
    return format_share(max(round(share * PARTS), 1 if share else 0), PARTS)


def _decibels(value: float | None) -> str:
    return format_decibels(value).removesuffix(" dB") if value is not None else NO_VALUE


def _ends(interval: Interval | None) -> str:
    return f"{interval.low:.2f} to {interval.high:.2f}" if interval is not None else NO_VALUE


def expected_line(drift: Drift) -> str:
    """Return what noise the quantized tensors add to the output; empty if none becomes integers."""
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
    """Return the verdict, with the reason."""
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
