"""Counts and sizes as people read them: three digits, and the unit that they are in."""

PREFIXES = "kMGT"


def format_count(count: float) -> str:
    """Write a count, or a value of a chart's axis, with three digits and a unit of thousands.

    Example:
        >>> format_count(0), format_count(950), format_count(12_345), format_count(4_100_000_000)
        ('0', '950', '12.3 k', '4.1 G')
        >>> format_count(0.1 + 0.2), format_count(5e-7), format_count(-1500.0), format_count(-0.0)
        ('0.3', '5e-07', '-1.5 k', '0')
    """
    digits, prefix = _scaled(count)
    return f"{digits} {prefix}" if prefix else digits


def format_bytes(size: int) -> str:
    """Write a size in decimal units, as disks and package registries count.

    Example:
        >>> format_bytes(1), format_bytes(999), format_bytes(1_234_567), format_bytes(20 * 10**9)
        ('1 byte', '999 bytes', '1.23 MB', '20 GB')
    """
    digits, prefix = _scaled(size)
    return f"{digits} {prefix}B" if prefix else f"{digits} byte{'' if size == 1 else 's'}"


def _scaled(value: float) -> tuple[str, str]:
    """Return a number's first three digits, and the unit of thousands that they count."""
    prefixes, prefix = iter(PREFIXES), ""
    # From 999.5 on, three digits would read 1e+03.
    while abs(value) >= 999.5 and prefix != PREFIXES[-1]:
        value, prefix = value / 1000, next(prefixes)
    return (f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}") if value else "0", prefix
