"""Which document each command prints with ``--json``, and which files have a schema of their own.

The types are named here, and imported when a schema is made: they are what the verbs return, which take a
second to import.
"""

from collections.abc import Mapping
from importlib import import_module

TITLE = "What the commands of ptq print with --json"
REPORT = "evaluation.document.report_document:Report"
REPORTS = "evaluation.document.report_document:Reports"

FILES: Mapping[str, str] = {
    "report.json": REPORT,
    "analysis.json": "evaluation.document.analysis_document:Analysis",
    "details.json": "evaluation.document.details:Details",
    "devices.json": "evaluation.document.device_document:DeviceAnswers",
    "tune.json": "evaluation.document.ladder:Ladder",
    "bench.json": "latency.run_bench:BenchResult",
    "drift.json": "monitoring.drift_document:Drift",
}
"""By the name of the file; ``bench.json`` is what ``ptq bench --json`` prints."""

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "calibrate": ("pipeline.run_calibrate:CalibrationResult",),
    "merge": ("pipeline.run_merge:MergeResult", REPORT, REPORTS),
    "calibration show": ("pipeline.views.calibration_view:CalibrationView",),
    "explain": ("pipeline.views.calibration_view:Explanation",),
    "export": ("pipeline.run_export:ExportResult",),
    "evaluate": (REPORT, REPORTS, "pipeline.run_evaluate:EvaluationShardResult"),
    "analyze": (FILES["analysis.json"],),
    "drift": (FILES["drift.json"],),
    "quantize": ("pipeline.run_quantize:QuantizationResult", "folders.quantize_folder:FolderResult"),
    "tune": ("tuning.run_tune:TuneResult",),
    "verify": (
        "evaluation.proof:Verification",
        "folders.verify_folder:VerifiedFolder",
        "devices.run_cases:PackedCases",
        FILES["devices.json"],
    ),
    "bench": (FILES["bench.json"],),
    "profile": ("latency.run_profile:ProfileResult",),
    "inspect": ("pipeline.run_inspect:Inspection",),
    "prepare": ("pipeline.run_prepare:PrepareResult", "folders.verify_folder:PreparedFolder"),
    "recipe init": ("setup.recipes:NewRecipe",),
    "recipe check": ("setup.recipes:CheckedRecipes",),
    "recipe keys": ("recipe.assignments:Keys",),
    "gate": ("evaluation.document.gate_result:Judgement",),
    "report": ("pipeline.evaluation.report_page:PageResult",),
    "compare": ("evaluation.report_changes:ReportChanges", "evaluation.trade_offs:TradeOffs"),
    "quantizers": ("cli.commands.quantizers:Quantizers",),
    "quantizers show": ("pipeline.views.staircase:Staircase",),
}
"""By the command's words: what it may print, the usual one first."""


def document_type(name: str) -> type:
    """Return the type that an entry of the tables above names."""
    module, _, kind = name.partition(":")
    found: type = getattr(import_module(f"ptq_cli.{module}"), kind)
    return found


def command_types() -> dict[str, list[type]]:
    """Return what each command may print."""
    return {command: list(map(document_type, names)) for command, names in COMMANDS.items()}
