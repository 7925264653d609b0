"""Lengths of time as they are written: ``90s``, ``10m``, ``1h``."""

import re

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
