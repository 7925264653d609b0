"""``ptq recipe``: recipes as files of their own, and the schemas of all documents.

The types are named here, and imported when a schema is made: they are what the verbs return, which take a
second to import.
"""

import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ptq_cli.terminal.options.help_sections import OWN, SectionGroup, argument, option
from ptq_cli.terminal.options.model_options import ARCH, MODEL_ARGUMENT, data_option
from ptq_cli.terminal.options.shared_options import GLOBALS, PATH, TALK, request_from, set_option, take

if TYPE_CHECKING:
    from ptq_cli.setup.recipes import CheckedRecipe, NewRecipe


TITLE = "What the commands of ptq print with --json"
_REPORT = "evaluation.document.report_document:Report"
REPORTS = "evaluation.document.report_document:Reports"
RECIPE = "ptq.toml"

# By the name of the file; ``bench.json`` is what ``ptq bench --json`` prints.
FILES: Mapping[str, str] = {
    "report.json": _REPORT,
    "analysis.json": "evaluation.document.analysis_document:Analysis",
    "details.json": "evaluation.document.report_document:Details",
    "devices.json": "evaluation.document.device_document:DeviceAnswers",
    "tune.json": "evaluation.document.ladder:Ladder",
    "bench.json": "latency.run_bench:BenchResult",
    "drift.json": "monitoring.drift:Drift",
    "intoto.json": "pipeline.statement:Statement",
}

# By the command's words: what it may print, the usual one first.
JSON_COMMANDS: Mapping[str, tuple[str, ...]] = {
    "calibrate": ("pipeline.run_calibrate:CalibrationResult",),
    "export": (
        "pipeline.run_export:ExportResult",
        "pipeline.run_prepare:PrepareResult",
        "folders.evaluate_folder:PreparedFolder",
    ),
    "evaluate": (_REPORT, REPORTS, "pipeline.run_evaluate:EvaluationShardResult"),
    "quantize": ("pipeline.run_quantize:QuantizationResult", "folders.quantize_folder:FolderResult"),
    "tune": ("tuning.run_tune:TuneResult",),
    "analyze": (FILES["analysis.json"],),
    "inspect": (
        "pipeline.run_inspect:Inspection",
        "pipeline.calibration_view:CalibrationView",
        "pipeline.calibration_view:Explanation",
    ),
    "verify": (
        "evaluation.verification:Verification",
        "folders.evaluate_folder:VerifiedFolder",
        "devices.run_cases:PackedCases",
        "receipts.run_rederive:Rederivation",
        FILES["devices.json"],
    ),
    "repair": ("repair.repair_document:Repair",),
    "bench": (FILES["bench.json"], "latency.measure_profile:ProfileResult"),
    "drift": (FILES["drift.json"],),
    "merge": ("pipeline.run_merge:MergeResult", _REPORT, REPORTS),
    "gate": ("evaluation.document.gate_result:Judgement",),
    "report": (
        "pipeline.evaluation.report_page:PageResult",
        "folders.model_card:CardResult",
        "evaluation.report_changes:ReportChanges",
        "evaluation.report_changes:TradeOffs",
    ),
    "recipe init": ("setup.recipes:NewRecipe",),
    "recipe check": ("setup.recipes:CheckedRecipes",),
    "recipe keys": ("recipe.assignments:Keys",),
}


def document_type(name: str) -> type:
    """Return the type that an entry of the tables above names."""
    module, _, kind = name.partition(":")
    found: type = getattr(import_module(f"ptq_cli.{module}"), kind)
    return found


def command_types() -> dict[str, list[type]]:
    """Return what each command may print."""
    return {command: list(map(document_type, names)) for command, names in JSON_COMMANDS.items()}


def schema_of(name: str) -> str:
    """Return the JSON Schema of a recipe, of a file, or of what a command prints with ``--json``."""
    from ptq_cli.core.documents import document_schema, file_schema
    from ptq_cli.core.words import require_known
    from ptq_cli.setup.recipes import recipe_schema

    require_known("document", name, [RECIPE, *JSON_COMMANDS, *FILES])
    if name == RECIPE:
        return recipe_schema()
    if name in FILES:
        return file_schema(document_type(FILES[name]))
    return document_schema(
        f"What ptq {name} prints with --json", list(map(document_type, JSON_COMMANDS[name]))
    )


DEFAULT_OUTPUT = "ptq.toml"


@click.group(
    cls=SectionGroup,
    short_help="Write or check a recipe, or list its keys.",
    epilog="""\b
Examples:
  ptq recipe init model.onnx --data calib.npz
  ptq recipe check
  ptq recipe keys amax
  ptq recipe schema -o ptq.schema.json
""",
)
@take(TALK)
def command() -> None:
    """Write, check and describe recipes: the TOML files that hold settings. No model is run."""


@command.command(
    "init",
    only="model",
    short_help="Write a commented recipe for a model.",
    epilog="""\b
Examples:
  ptq recipe init model.onnx
  ptq recipe init model.onnx --data calib.npz --eval-data eval.npz --force
""",
)
@option(
    OWN, "--output", "-o", type=PATH, default=Path(DEFAULT_OUTPUT), show_default=True, metavar="FILE",
    help="Output file.",
)  # fmt: skip
@option(OWN, "--force", is_flag=True, help="Overwrite an existing file.")
@data_option("Calibration data to write into the recipe.")
@data_option("Evaluation data to write into the recipe.", "--eval-data")
@set_option("Set how the model is read: model.trust_pickle=true. Can be repeated.")
@take(MODEL_ARGUMENT, ARCH, GLOBALS)
def init(output: Path, force: bool, model: Path | None, as_json: bool, **options: Any) -> None:
    """Write a recipe for MODEL, with its inputs, what they look like, and the rest as questions.

    Every command that runs in the folder of ptq.toml reads it.
    """
    from ptq_cli.setup.recipes import run_recipe_init

    _show_new(run_recipe_init(request_from(options, model), output, force=force), as_json=as_json)


def _show_new(result: "NewRecipe", *, as_json: bool) -> None:
    from ptq_cli.terminal.output import print_json, say
    from ptq_cli.terminal.phrases import shown_path

    if as_json:
        print_json(result)
        return
    say(f"wrote {shown_path(result.output)}, with {result.questions} questions in its comments")
    for key in result.unset:
        say(f"note: '{key}' is not set, and the model cannot be quantized without it")
    say("next: answer them, and then run ptq recipe check")


@command.command(
    "check",
    short_help="Check a recipe.",
    epilog="""\b
Examples:
  ptq recipe check
  ptq recipe check recipes/cpu.toml
""",
)
@argument("file", nargs=-1, type=PATH, metavar="[FILE]...")
@take(GLOBALS)
def check(file: tuple[Path, ...], as_json: bool) -> None:
    """Check each FILE, or ptq.toml if no FILE is given: its keys, its values and the names in it.

    A recipe that names a model must name the data that quantizing it needs. Files and folders that it names
    and that are not there are listed; they are not errors.
    """
    from ptq_cli.recipe.recipe_layers import FOLDER_RECIPE
    from ptq_cli.setup.recipes import check_recipe_file
    from ptq_cli.terminal.output import tell

    checked = [check_recipe_file(path) for path in file or (Path(FOLDER_RECIPE),)]
    _show_checked(checked, as_json=as_json)
    if not file and not as_json:
        tell(f"next: {checked[0].command}")


def _show_checked(results: "Sequence[CheckedRecipe]", *, as_json: bool) -> None:
    from ptq_cli.setup.recipes import CheckedRecipes
    from ptq_cli.terminal.output import print_json, say
    from ptq_cli.terminal.phrases import shown_path

    if as_json:
        print_json(CheckedRecipes(tuple(results)))
        return
    for result in results:
        count = len(result.settings)
        say(f"{shown_path(result.file)} is correct: {count} setting{'' if count == 1 else 's'}")
        for path in result.missing:
            say(f"note: '{shown_path(path)}' is not there")


@command.command(
    "keys",
    short_help="List the keys of a recipe.",
    epilog="""\b
Examples:
  ptq recipe keys
  ptq recipe keys weights
""",
)
@argument("pattern", required=False)
@take(GLOBALS)
def keys(pattern: str | None, as_json: bool) -> None:
    """List the keys that a recipe or --set can set: type, default and meaning.

    With PATTERN, list those that contain it, or that it matches with * as in a shell. Keys of [run] hold for
    one command: --set takes them, and a recipe does not.
    """
    from ptq_cli.recipe.assignments import Keys, list_keys
    from ptq_cli.report.text.numbers import Table
    from ptq_cli.terminal.output import UNKNOWN, print_json, print_table

    found = list_keys(pattern)
    if as_json:
        print_json(Keys(tuple(found)))
        return
    rows = tuple(
        (item.key, item.type, UNKNOWN if item.default is None else json.dumps(item.default), item.meaning)
        for item in found
    )
    print_table(Table(("key", "type", "default", "meaning"), rows), whole=(0,))


@command.command(
    "schema",
    short_help="Write the JSON Schema of recipes, or of another document.",
    epilog="""\b
Examples:
  ptq recipe schema -o ptq.schema.json
  ptq recipe schema quantize
  ptq recipe schema report.json
  ptq recipe schema recipe check
""",
)
@argument("document", nargs=-1, metavar="[DOCUMENT]...")
@option(OWN, "--output", "-o", type=PATH, metavar="FILE", help="Output file.  [default: stdout]")
@take(TALK)
def schema(document: tuple[str, ...], output: Path | None) -> None:
    """Write the JSON Schema of recipes, or of DOCUMENT: what a command prints with --json, or a file.

    With the comment "#:schema ptq.schema.json" at the top of a recipe, editors that know TOML (Taplo, Even
    Better TOML of VS Code) complete its keys, show what they mean, and mark what is wrong.

    DOCUMENT is the name of a command, or of a file such as report.json. The schema of a file allows no other
    keys than those of its format version; that of a command allows more keys, because later versions may add
    some.
    """
    from ptq_cli.core.files import write_text
    from ptq_cli.terminal.output import say
    from ptq_cli.terminal.phrases import shown_path

    text = schema_of(" ".join(document) or DEFAULT_OUTPUT)
    if output is None:
        click.echo(text, nl=False)
        return
    write_text(output, text)
    say(f"wrote {shown_path(output)}")
