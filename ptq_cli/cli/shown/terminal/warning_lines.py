"""The warnings about a result: a line each on stderr, and what to try on lines of their own."""

from collections.abc import Iterable

from ptq_cli.cli.shown.terminal.output import tell, warn
from ptq_cli.report.document.report_warning import ReportWarning


def warn_of_result(warnings: Iterable[ReportWarning]) -> None:
    """Print on stderr what a user should know of a result."""
    hints: dict[str, None] = {}
    for warning in warnings:
        warn(warning.message)
        hints |= dict.fromkeys(warning.hints)
    for hint in hints:
        tell(f"hint: {hint}")
