"""The report that a gate compares with."""

from pathlib import Path

from ptq_cli.core.errors import ReportError
from ptq_cli.recipe.sections.evaluation_sections import GateSettings
from ptq_cli.report.document.report_document import Report, read_report


def read_baseline(gate: GateSettings) -> Report | None:
    """Return the baseline that a gate names, or None if it names none.

    Raises:
        InputFileError: the file is missing or unreadable.
        ReportError: it is damaged, no report, or of a newer format version.

    Example:
        >>> read_baseline(GateSettings()) is None
        True
    """
    if gate.baseline is None:
        return None
    try:
        return read_report(Path(gate.baseline))
    except ReportError as error:
        raise ReportError(f"baseline {error.message}", hint=error.hint) from error
