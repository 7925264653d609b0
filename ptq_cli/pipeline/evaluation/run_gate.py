"""``gate``: decide from a report alone. Nothing here loads a model, PyTorch or ONNX Runtime."""

from dataclasses import replace
from pathlib import Path

from ptq_cli.core.errors import UsageError
from ptq_cli.recipe.sections.evaluation_sections import GateSettings
from ptq_cli.report.document.report_document import Report, read_report
from ptq_cli.report.gate.decide_gates import decide
from ptq_cli.report.gate.named_baseline import read_baseline


def run_gate(report: Path, gate: GateSettings) -> Report:
    """Return the report with the given limits decided; without any limit, with its own.

    Args:
        report: the file.
        gate: the limits; ``strict`` alone decides the report's own limits strictly.

    Raises:
        InputFileError: the report or the baseline is missing or unreadable.
        ReportError: one of them is damaged, no report, or of a newer format version.
        GateError: it lacks a metric, or a limit makes no sense.
        BaselineError: the baseline is of another model, or was measured on other data.
        UsageError: there is no limit at all.
    """
    found = read_report(report)
    if gate.has_limits or gate.baseline is not None:
        return decide(found, gate, read_baseline(gate))
    if not found.gates:
        raise UsageError(
            f"no limit was set, and '{report}' has none either", hint="for example: --max-drop top1=0.01"
        )
    gates = tuple(replace(result, strict=result.strict or gate.strict) for result in found.gates)
    return replace(found, gates=gates)
