"""Counts, sizes and lists of names as people read them, and text without characters that hide."""

import json
import re
import shlex
from collections.abc import Sequence

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
    """Write a size in decimal units, as disks and package registries count."""
    digits, prefix = _scaled(size)
    return f"{digits} {prefix}B" if prefix else f"{digits} byte{'' if size == 1 else 's'}"


def few(names: Sequence[str], most: int) -> str:
    """Write the first names, and how many there are besides.

    Example:
        >>> few(["a", "b"], 2), few(["a", "b", "c"], 1)
        ('a, b', 'a and 2 more')
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def entry_option(key: str, name: str, value: object) -> str:
    """Write ``--set KEY.NAME=VALUE`` as one types it, with quotes where a name needs them.

    Example:
        >>> print(entry_option("data.rename", "image.1", "x"), entry_option("data.rename", "a b", "x"))
        --set data.rename.image.1=x --set 'data.rename.a b=x'
        >>> print(entry_option("data.rename", "a=b", "x"))
        --set 'data.rename={"a=b" = "x"}'
    """
    if "=" in name:
        return f"--set {shlex.quote(f'{key}={{{json.dumps(name)} = {json.dumps(value)}}}')}"
    return f"--set {shlex.quote(f'{key}.{name}={value}')}"


def _scaled(value: float) -> tuple[str, str]:
    """Return a number's first three digits, and the unit of thousands that they count."""
    prefixes, prefix = iter(PREFIXES), ""
    # From 999.5 on, three digits would read 1e+03.
    while abs(value) >= 999.5 and prefix != PREFIXES[-1]:
        value, prefix = value / 1000, next(prefixes)
    return (f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}") if value else "0", prefix


# When a measured time says something about a model: it is long enough, and the machine was idle enough.


SHORTEST_RUN = 20e-6
"""Seconds: a call of ONNX Runtime takes 5 to 6 µs itself, so that shorter runs do not tell models apart."""
MOST_SPREAD = 2.0
"""Of the median run over a fast one: above it, other work on the machine decides what is measured."""


def too_spread(spread: float) -> str:
    """Return that the machine is too busy, with what to do; nothing if it is not.

    ``spread`` is the median run's time over a fast run's.

    Example:
        >>> too_spread(1.4), too_spread(3.0)[:46]
        ('', 'the machine is busy: the median run takes 3.0 ')
    """
    if spread <= MOST_SPREAD:
        return ""
    return (
        f"the machine is busy: the median run takes {spread:.1f} times as long as a fast one; "
        "try again when it is idle"
    )


# Lengths of time as they are written: ``90s``, ``10m``, ``1h``.


_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*(s|min|m|h)?")
_SECONDS = {None: 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float | None:
    """Return how many seconds a text means; None if it is not a length of time, or 0.

    Units:
        ``s``, ``m`` or ``min``, ``h``; a number alone is seconds.

    Example:
        >>> parse_duration("10m"), parse_duration("1.5h"), parse_duration("soon")
        (600.0, 5400.0, None)
    """
    found = _DURATION.fullmatch(text.strip())
    return float(found[1]) * _SECONDS[found[2]] or None if found else None


# Text from models and files in what ptq writes: no character that a terminal or an editor obeys.


def visible(text: str, instead: str = "\ufffd") -> str:
    r"""Return a text with what is not printable replaced, but for line ends and hard spaces.

    Control characters move a terminal's cursor, and marks of direction show a name in another order.

    Example:
        >>> visible("a\x1b[2J\u202eb", "?")
        'a?[2J?b'
    """
    kept = "\n\xa0"
    if text.translate(dict.fromkeys(map(ord, kept))).isprintable():  # As nearly all text, megabytes too.
        return text
    return "".join(letter if letter.isprintable() or letter in kept else instead for letter in text)


def escaped(toml: str) -> str:
    r"""Return TOML in which such characters, which are in strings alone, are written as escapes.

    Example:
        >>> print(escaped('a = "\x9b\u202e"'))
        a = "\u009b\u202e"
    """
    return "".join(letter if letter.isprintable() or letter == "\n" else _escape(letter) for letter in toml)


def _escape(letter: str) -> str:
    code = ord(letter)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
