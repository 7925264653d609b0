"""Which document each command prints with ``--json``, and which files have a schema of their own.

The types are named here, and imported when a schema is made: they are what the verbs return, which take a
second to import.
"""

from collections.abc import Mapping
from importlib import import_module

TITLE = "What the commands of ptq print with --json"
REPORT = "evaluation.document.report_document:Report"
REPORTS = "evaluation.document.report_document:Reports"
RECIPE = "ptq.toml"

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
    "export": (
        "pipeline.run_export:ExportResult",
        "pipeline.run_prepare:PrepareResult",
        "folders.verify_folder:PreparedFolder",
    ),
    "evaluate": (REPORT, REPORTS, "pipeline.run_evaluate:EvaluationShardResult"),
    "quantize": ("pipeline.run_quantize:QuantizationResult", "folders.quantize_folder:FolderResult"),
    "tune": ("tuning.run_tune:TuneResult",),
    "analyze": (FILES["analysis.json"],),
    "inspect": (
        "pipeline.run_inspect:Inspection",
        "pipeline.views.calibration_view:CalibrationView",
        "pipeline.views.calibration_view:Explanation",
    ),
    "verify": (
        "evaluation.proof.verification:Verification",
        "folders.verify_folder:VerifiedFolder",
        "devices.run_cases:PackedCases",
        FILES["devices.json"],
    ),
    "bench": (FILES["bench.json"], "latency.run_profile:ProfileResult"),
    "drift": (FILES["drift.json"],),
    "merge": ("pipeline.run_merge:MergeResult", REPORT, REPORTS),
    "gate": ("evaluation.document.gate_result:Judgement",),
    "report": (
        "pipeline.evaluation.report_page:PageResult",
        "evaluation.report_changes:ReportChanges",
        "evaluation.trade_offs:TradeOffs",
    ),
    "recipe init": ("setup.recipes:NewRecipe",),
    "recipe check": ("setup.recipes:CheckedRecipes",),
    "recipe keys": ("recipe.assignments:Keys",),
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


def schema_of(name: str) -> str:
    """Return the JSON Schema of a recipe, of a file, or of what a command prints with ``--json``."""
    from ptq_cli.core.json_schema import document_schema, file_schema
    from ptq_cli.core.known_names import require_known
    from ptq_cli.setup.recipe_schema import recipe_schema

    require_known("document", name, [RECIPE, *COMMANDS, *FILES])
    if name == RECIPE:
        return recipe_schema()
    if name in FILES:
        return file_schema(document_type(FILES[name]))
    return document_schema(f"What ptq {name} prints with --json", list(map(document_type, COMMANDS[name])))
