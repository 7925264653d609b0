"""Numbers written for a reader."""

import math


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
