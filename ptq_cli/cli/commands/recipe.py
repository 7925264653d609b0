"""``ptq recipe``: recipes as files of their own."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ptq_cli.terminal.options import completion
from ptq_cli.terminal.options.help_sections import OWN, SectionGroup, argument, option
from ptq_cli.terminal.options.model_options import MODEL_ARGUMENT, MODEL_SOURCE, data_option
from ptq_cli.terminal.options.shared_options import GLOBALS, PATH, TALK, request_from, take

if TYPE_CHECKING:
    from ptq_cli.setup.recipes import CheckedRecipe, NewRecipe

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
    short_help="Write a commented recipe for a model.",
    epilog="""\b
Examples:
  ptq recipe init model.onnx
  ptq recipe init model.onnx --data calib.npz --eval-data eval.npz --force
  ptq recipe init model.pt --arch model.py:build -o recipes/cpu.toml
""",
)
@option(
    OWN, "--output", "-o", type=PATH, default=Path(DEFAULT_OUTPUT), show_default=True, metavar="FILE",
    help="Output file.",
)  # fmt: skip
@option(OWN, "--force", is_flag=True, help="Overwrite an existing file.")
@data_option("Calibration data to write into the recipe.")
@data_option("Evaluation data to write into the recipe.", "--eval-data")
@take(MODEL_ARGUMENT, MODEL_SOURCE, GLOBALS)
def init(output: Path, force: bool, model: Path | None, as_json: bool, **options: Any) -> None:
    """Write a recipe for MODEL, with its inputs, what they look like, and the rest as questions.

    Every command that runs in the folder of ptq.toml reads it.
    """
    from ptq_cli.setup.recipes import run_recipe_init

    _show_new(
        run_recipe_init(request_from(options, model), output, force=force),
        as_json=as_json,
    )


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
  ptq recipe keys '*.batch_size' --json
""",
)
@argument("pattern", required=False, shell_complete=completion.complete_sections)
@take(GLOBALS)
def keys(pattern: str | None, as_json: bool) -> None:
    """List the keys that a recipe or --set can set: type, default and meaning.

    With PATTERN, list those that contain it, or that it matches with * as in a shell. Keys of [run] hold for
    one command: --set takes them, and a recipe does not.
    """
    from ptq_cli.recipe.assignments import Keys, list_keys
    from ptq_cli.report.text.summary import Table
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
    short_help="Write the JSON Schema of recipes, for editors.",
    epilog="""\b
Examples:
  ptq recipe schema -o ptq.schema.json
""",
)
@option(OWN, "--output", "-o", type=PATH, metavar="FILE", help="Output file.  [default: stdout]")
@take(TALK)
def schema(output: Path | None) -> None:
    """Write the JSON Schema of recipes.

    With the comment "#:schema ptq.schema.json" at the top of a recipe, editors that know TOML (Taplo, Even
    Better TOML of VS Code) complete its keys, show what they mean, and mark what is wrong.
    """
    from ptq_cli.core.files import write_text
    from ptq_cli.setup.recipe_schema import recipe_schema
    from ptq_cli.terminal.output import say
    from ptq_cli.terminal.phrases import shown_path

    if output is None:
        click.echo(recipe_schema(), nl=False)
        return
    write_text(output, recipe_schema())
    say(f"wrote {shown_path(output)}")
