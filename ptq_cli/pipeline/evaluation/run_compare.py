"""``compare``: what changed between two reports. Nothing here loads a model, PyTorch or ONNX Runtime."""

from pathlib import Path

from ptq_cli.report.analysis.analysis_document import Analysis, read_analysis
from ptq_cli.report.comparison.report_changes import ReportChanges, compare_reports
from ptq_cli.report.document.report_document import Report, read_report


def run_compare(before: Path, after: Path) -> ReportChanges:
    """Return what changed from one report to another.

    Where an ``analysis.json`` of the same quantized model lies beside each report, layers are compared, too.

    Args:
        before: the earlier report.
        after: the later one.

    Raises:
        InputFileError: one of them is missing or unreadable.
        ReportError: one is damaged, no report, or of a newer format version.
        AnalysisError: an analysis is damaged, or of another format version.
    """
    reports = read_report(before), read_report(after)
    old, new = (_analysis(path, report) for path, report in zip((before, after), reports, strict=True))
    return compare_reports(*reports, (old, new) if old is not None and new is not None else None)


def _analysis(path: Path, report: Report) -> Analysis | None:
    """Return the analysis beside a report; None if there is none, or it is of another quantized model."""
    beside = path.with_name("analysis.json")
    if not beside.is_file():
        return None
    found = read_analysis(beside)
    return found if found.models.quantized_model.sha256 == report.model.quantized_model.sha256 else None
