"""What a report says about one metric in several ways must agree."""

from collections.abc import Sequence

from ptq_cli.core.errors import ReportError
from ptq_cli.report.document.hits import require_hits
from ptq_cli.report.document.measurement import Measurement
from ptq_cli.report.intervals.interval import TOLERANCE


def require_consistent(metrics: Sequence[Measurement], samples: int) -> None:
    """Refuse measurements whose intervals, flips and hits contradict their values.

    Raises:
        ReportError: they do; the message says where.

    Example:
        >>> top1 = Measurement(
        ...     name="top1",
        ...     unit="share",
        ...     needs_labels=True,
        ...     higher_is_better=True,
        ...     quantized_value=0.75,
        ...     float_value=0.75,
        ... )
        >>> require_consistent([top1], samples=4)
    """
    for index, measurement in enumerate(metrics):
        where = f"metrics[{index}]"
        _require_intervals(measurement, where)
        _require_flips(measurement, samples, where)
        _require_classes(measurement, where)
        if measurement.quantized_hits is not None:
            require_hits(
                measurement.quantized_hits, samples, measurement.quantized_value, f"{where}.quantized_hits"
            )
        if measurement.float_hits is not None and measurement.float_value is not None:
            require_hits(measurement.float_hits, samples, measurement.float_value, f"{where}.float_hits")


def _require_intervals(measurement: Measurement, where: str) -> None:
    intervals = {
        "quantized_interval": measurement.quantized_interval,
        "drop_interval": measurement.drop_interval,
        "ratio_interval": measurement.ratio_interval,
    }
    for name, interval in intervals.items():
        # Not `high < low`, which NaN would pass.
        if interval is not None and not interval.low <= interval.high:
            raise _contradiction(f"{where}.{name}", f"ends at {interval.high}, below its {interval.low}")


def _require_flips(measurement: Measurement, samples: int, where: str) -> None:
    flips = measurement.flips
    if flips is None:
        return
    if flips.samples != samples:
        raise _contradiction(f"{where}.flips.samples", f"is {flips.samples}, the report's are {samples}")
    if flips.lost + flips.gained > samples:
        raise _contradiction(f"{where}.flips", f"counts more than the {samples} samples")
    if measurement.drop is None or abs(measurement.drop - flips.drop) > TOLERANCE:
        raise _contradiction(
            f"{where}.flips", f"makes a drop of {flips.drop}, the report's is {measurement.drop}"
        )


def _require_classes(measurement: Measurement, where: str) -> None:
    for index, found in enumerate(measurement.by_class):
        if abs(found.drop - found.flips.drop) > TOLERANCE:
            raise _contradiction(
                f"{where}.by_class[{index}].flips",
                f"makes a drop of {found.flips.drop}, its own is {found.drop}",
            )


def _contradiction(where: str, what: str) -> ReportError:
    return ReportError(f"'{where}' {what}", hint="run ptq evaluate again")
