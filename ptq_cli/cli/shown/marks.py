"""Marks beside numbers on the terminal."""

UNKNOWN = "–"  # noqa: RUF001 - a dash for what was not kept
CHOSEN = "*"
