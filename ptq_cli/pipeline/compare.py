"""``compare``: what changed between two reports. Nothing here loads a model, PyTorch or ONNX Runtime."""

from pathlib import Path

from ptq_cli.report.compare import Comparison, compare_reports
from ptq_cli.report.document import read_report


def run_compare(before: Path, after: Path) -> Comparison:
    """Return what changed from one report to another.

    Args:
        before: the earlier report.
        after: the later one.

    Raises:
        InputFileError: one of them is missing or unreadable.
        ReportError: one is damaged, no report, or of a newer format version.
    """
    return compare_reports(read_report(before), read_report(after))
