"""Numbers written for a reader, and a table of texts.

Text that comes from the model is passed on unchanged: the renderer escapes it.
"""

import math
from dataclasses import dataclass

from ptq_cli.evaluation.document.measurement import Unit
from ptq_cli.evaluation.interval import CONFIDENCE, Interval

Row = tuple[str, ...]
MAX_DECIMALS = 9
INTERVAL = f"{CONFIDENCE:.0%}".replace("%", " % interval")  # header of a column of intervals


@dataclass(frozen=True)
class Table:
    """A header, and rows with as many cells as the header."""

    header: Row
    rows: tuple[Row, ...]


def format_value(value: float | None, unit: Unit, decimals: int | None = None) -> str:
    """Write a metric's value; nothing if there is none.

    Units: a share is written as a percentage, decibels unchanged, a number with four significant digits.

    Example:
        >>> format_value(0.8213, "share"), format_value(31.517, "decibel"), format_value(0.0123456, "number")
        ('82.13 %', '31.52 dB', '0.01235')
    """
    if value is None:
        return ""
    if unit == "number":
        if decimals is not None:
            return f"{value:.{decimals}f}"
        # A cosine of 0.99998 is not 1, and the reader looks for the difference.
        return f"{value:.4g}" if f"{value:.4g}" != "1" or value == 1 else f"{value:.6f}"
    shown, suffix = (100 * value, "%") if unit == "share" else (value, "dB")
    return f"{shown:.{2 if decimals is None else decimals}f} {suffix}"


def format_drop(drop: float | None, unit: Unit, decimals: int | None = None) -> str:
    """Write a drop. The drop of a share is in percentage points; a gain has a minus sign.

    Example:
        >>> format_drop(0.0102, "share"), format_drop(-0.002, "share"), format_drop(0.5, "number")
        ('1.02 points', '-0.20 points', '0.5')
    """
    return format_value(drop, unit, decimals).replace(" %", " points")


def format_interval(interval: Interval | None, unit: Unit) -> str:
    """Write both ends of an interval, without the unit, which the column beside it shows.

    Edge case: Without an interval, or if it is the infinite value alone, an empty text. With unit
    ``"number"``, as many digits as the ends need to differ.

    Example:
        >>> format_interval(Interval(-0.002, 0.0051, "score"), "share"), format_interval(None, "share")
        ('-0.20 to 0.51', '')
        >>> format_interval(Interval(0.99871, 0.99874, "bootstrap"), "number")
        '0.99871 to 0.99874'
    """
    if interval is None or interval.low == interval.high in (math.inf, -math.inf):
        return ""
    ends = (interval.low, interval.high)
    if unit != "number":
        low, high = (format_value(end, unit).partition(" ")[0] for end in ends)
        return f"{low} to {high}"
    digits = 4
    while digits < MAX_DECIMALS and ends[0] != ends[1] and f"{ends[0]:.{digits}g}" == f"{ends[1]:.{digits}g}":
        digits += 1
    return f"{ends[0]:.{digits}g} to {ends[1]:.{digits}g}"


def format_share(count: int, total: int) -> str:
    """Write a share in percent; it reads 0 or 100 only if it is exactly that.

    Example:
        >>> format_share(0, 8), format_share(1, 10**9), format_share(1, 8), format_share(10**9 - 1, 10**9)
        ('0 %', '<0.0001 %', '12.5 %', '>99.999 %')
        >>> format_share(8, 8), format_share(0, 0)
        ('100 %', '0 %')
    """
    if not count:
        return "0 %"
    if count == total:
        return "100 %"
    percent = 100 * count / total
    if percent < 1:
        # Two significant digits: clipped values are often rarer than one in a thousand.
        return f"{percent:.2g} %" if percent >= 0.0001 else "<0.0001 %"
    text = f"{percent:.3g}" if percent < 99.9 else f"{percent:.3f}"
    return ">99.999 %" if text == "100.000" else f"{text} %"


def format_number(value: float) -> str:
    """Write a number with four significant digits.

    Example:
        >>> format_number(0.0), format_number(6.0), format_number(-1234567.0), format_number(0.000012345)
        ('0', '6', '-1.235e+06', '1.234e-05')
    """
    return f"{value:.4g}"


def format_range(low: float, high: float) -> str:
    """Write a range.

    Example:
        >>> format_range(-1.98, 6.0)
        '-1.98 … 6'
    """
    return f"{format_number(low)} … {format_number(high)}"


def format_decibels(value: float) -> str:
    """Write decibels.

    Example:
        >>> format_decibels(31.517), format_decibels(math.inf), format_decibels(math.nan)
        ('31.52 dB', 'inf', 'NaN')
    """
    if math.isnan(value):
        return "NaN"
    return f"{value:.2f} dB" if math.isfinite(value) else str(value)


def format_latency(seconds: float) -> str:
    """Write a short time with three digits.

    Example:
        >>> format_latency(0.01234), format_latency(0.0000456), format_latency(2.5)
        ('12.3 ms', '45.6 µs', '2.5 s')
    """
    if seconds >= 0.9995:
        return f"{seconds:.3g} s"
    return f"{1e3 * seconds:.3g} ms" if seconds >= 0.9995e-3 else f"{1e6 * seconds:.3g} µs"


def share_of_float(size: int, float_size: int) -> str:
    """Write the size of the quantized file as a share of the float file's."""
    return f"{100 * size / float_size:.1f} % of float"
