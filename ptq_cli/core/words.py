"""Counts, sizes, lengths of time, lists of names and printable text; the nearest known name."""

import json
import math
import re
import shlex
from collections.abc import Iterable, Sequence

from ptq_cli.core.errors import UnknownNameError

_PREFIXES = "kMGT"


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
    """A number's first three digits, and the unit of thousands that they count."""
    prefixes, prefix = iter(_PREFIXES), ""
    # From 999.5 on, three digits would read 1e+03.
    while abs(value) >= 999.5 and prefix != _PREFIXES[-1]:
        value, prefix = value / 1000, next(prefixes)
    return (f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}") if value else "0", prefix


_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*(s|min|m|h)?")
_SECONDS = {None: 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float | None:
    """How many seconds a text means; None if it is not a length of time, or 0.

    Units: ``s``, ``m`` or ``min``, ``h``; a number alone is seconds.

    Example:
        >>> parse_duration("10m"), parse_duration("1.5h"), parse_duration("soon")
        (600.0, 5400.0, None)
    """
    found = _DURATION.fullmatch(text.strip())
    return float(found[1]) * _SECONDS[found[2]] or None if found else None


UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12} | {
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)")


def parse_size(text: str) -> int | None:
    """The number of bytes that a text such as ``2GiB`` stands for, or None if it is not a valid size.

    Units: ``KiB``, ``MiB``, ``GiB`` and ``TiB`` are powers of 1024, ``KB``, ``MB``, ``GB`` and ``TB`` of
        1000; case does not matter. A number alone is bytes.

    Example:
        >>> parse_size("2GiB"), parse_size("1.5 MB"), parse_size("64"), parse_size("much")
        (2147483648, 1500000, 64, None)
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or (match[2] or "B").upper() not in UNITS:
        return None
    size = float(match[1]) * UNITS[(match[2] or "B").upper()]
    return int(size) if math.isfinite(size) else None


def did_you_mean(name: str, known: list[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the nearest known name, or an empty string."""
    from difflib import get_close_matches

    matches = get_close_matches(name, known, n=1, cutoff=0.6)
    return f" (did you mean '{matches[0]}'?)" if matches else ""


def require_known(what: str, name: str, known: Iterable[str]) -> None:
    """Raise if ``name`` is not among the known names."""
    names = list(known)
    if name not in names:
        raise UnknownNameError(
            f"unknown {what} '{name}'{did_you_mean(name, names)}", hint=f"known: {', '.join(names)}"
        )


def visible(text: str, instead: str = "\ufffd") -> str:
    r"""A text with what is not printable replaced, but for line ends and hard spaces.

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
