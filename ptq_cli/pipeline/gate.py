"""``gate``: decide from a report alone. Nothing here loads a model, PyTorch or ONNX Runtime."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ptq_cli.core.errors import UsageError
from ptq_cli.recipe.schema import GateSettings
from ptq_cli.report.document import Report, read_report
from ptq_cli.report.gate import check_limits, decide


def run_gate(report: Path, max_drop: Mapping[str, float], minimum: Mapping[str, float]) -> Report:
    """Return the report with the given limits decided; without any limit, with its own.

    Raises:
        InputFileError: the report is missing or unreadable.
        ReportError: it is damaged, no report, or of a newer format version.
        GateError: it lacks a metric, or a limit makes no sense.
        UsageError: there is no limit at all.
    """
    found = read_report(report)
    gate = GateSettings(max_drop=dict(max_drop), min=dict(minimum))
    if not max_drop and not minimum:
        if not found.gates:
            raise UsageError(
                f"no limit: '{report}' holds none either", hint="for example: --max-drop top1=0.01"
            )
        return found
    check_limits(gate)
    return replace(found, gates=tuple(decide(found.metrics, gate, found.evaluation.samples)))
