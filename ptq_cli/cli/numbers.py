"""Marks beside numbers on the terminal, and the numbers as a person reads them."""

from ptq_cli.report.numbers import (
    format_count,
    format_decibels,
    format_latency,
    format_number,
    format_range,
    format_share,
)

__all__ = [
    "CHOSEN",
    "UNKNOWN",
    "format_count",
    "format_decibels",
    "format_latency",
    "format_number",
    "format_range",
    "format_share",
]

UNKNOWN = "–"  # noqa: RUF001 - a dash for what was not kept
CHOSEN = "*"
