"""``compare``: what changed between reports. Nothing here loads a model, PyTorch or ONNX Runtime."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ptq_cli.core.documents import read_document
from ptq_cli.core.errors import UsageError
from ptq_cli.core.files import write_together
from ptq_cli.evaluation.decide_gates import decide, read_baseline
from ptq_cli.evaluation.document.analysis_document import Analysis
from ptq_cli.evaluation.document.report_document import Report
from ptq_cli.evaluation.report_changes import (
    LayerDifference,
    ReportChanges,
    TradeOffs,
    compare_reports,
    layer_differences,
    trade_offs,
)
from ptq_cli.recipe.sections import GateSettings

_REPORT = "report.json"


@dataclass(frozen=True)
class ComparisonResult:
    """Several reports side by side.

    Attributes:
        changes: from the first report to the second, if there are only these.
    """

    found: TradeOffs
    changes: ReportChanges | None


@dataclass(frozen=True)
class _ReportOfRun:
    path: Path
    report: Report
    analysis: Analysis | None


def run_compare(before: Path, after: Path) -> ReportChanges:
    """Return what changed from one report to another.

    Where an ``analysis.json`` of the same quantized model lies beside each report, layers are compared, too.
    """
    return _changes(_read(before), _read(after))


def run_compare_models(
    paths: Sequence[Path], metric: str | None = None, page: Path | None = None
) -> ComparisonResult:
    """Return several reports side by side, and write them as a page."""
    if len(paths) < 2:
        raise UsageError("compare needs at least two reports", hint="pass the report.json of each run")
    if len(paths) == 2 and metric is not None and page is None:
        raise UsageError(
            "two reports are compared by all metrics, so --metric has no effect",
            hint="add --page FILE, whose table of models shows this metric",
        )
    runs = [_read(path) for path in paths]
    found = trade_offs([run.report for run in runs], names_of([run.path for run in runs]), metric)
    changes = _changes(*runs) if len(runs) == 2 else None
    if page is not None:
        from ptq_cli.report.html.page_view import render_comparison

        layers: tuple[LayerDifference, ...] = ()
        if changes is not None:
            first, second = runs
            layers = layer_differences(first.report, second.report, _analyses(first, second))
        write_together({page: render_comparison(found, changes, layers).encode()})
    return ComparisonResult(found, changes)


def names_of(paths: Sequence[Path]) -> tuple[str, ...]:
    """Return what reports are called: the part of each path that tells it from the others.

    The whole path where the same file is given twice.

    Example:
        >>> names_of([Path("runs/a/report.json"), Path("runs/b/report.json"), Path("old.json")])
        ('a', 'b', 'old')
        >>> names_of([Path("a/ptq-run/report.json"), Path("b/ptq-run/report.json")])
        ('a/ptq-run', 'b/ptq-run')
    """
    parts = [
        path.parent.parts if path.name == _REPORT and path.parent.parts else path.with_suffix("").parts
        for path in paths
    ]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(own[-length:]) for own in parts]
        if len(set(names)) == len(names):
            return tuple(names)
    return tuple(path.as_posix() for path in paths)


def _read(path: Path) -> _ReportOfRun:
    file = path / _REPORT if path.is_dir() else path
    report = read_document(Report, file)
    return _ReportOfRun(file, report, _analysis(file, report))


def _changes(before: _ReportOfRun, after: _ReportOfRun) -> ReportChanges:
    return compare_reports(before.report, after.report, _analyses(before, after))


def _analyses(before: _ReportOfRun, after: _ReportOfRun) -> tuple[Analysis, Analysis] | None:
    old, new = before.analysis, after.analysis
    return (old, new) if old is not None and new is not None else None


def _analysis(path: Path, report: Report) -> Analysis | None:
    beside = path.with_name("analysis.json")
    if not beside.is_file():
        return None
    found = read_document(Analysis, beside)
    return found if found.models.quantized_model.sha256 == report.model.quantized_model.sha256 else None


def run_gate(report: Path, gate: GateSettings) -> Report:
    """Return the report with the given limits decided; without any limit, with its own."""
    found = read_document(Report, report)
    if gate.has_limits or gate.baseline is not None:
        return decide(found, gate, read_baseline(gate))
    if not found.gates:
        raise UsageError(
            f"no limit was set, and '{report}' has none either", hint="for example: --max-drop top1=0.01"
        )
    gates = tuple(replace(result, strict=result.strict or gate.strict) for result in found.gates)
    return replace(found, gates=gates)
