"""``ptq schema``."""

from pathlib import Path

import click

from ptq_cli.terminal.options.completion import complete_names, documents
from ptq_cli.terminal.options.help_sections import OWN, SectionCommand, argument, option
from ptq_cli.terminal.options.shared_options import PATH, TALK, take

RECIPE = "ptq.toml"


@click.command(
    cls=SectionCommand,
    short_help="Write the JSON Schema of a command's --json output, or of a file.",
    epilog="""\b
Examples:
  ptq schema
  ptq schema quantize
  ptq schema calibration show -o show.schema.json
  ptq schema report.json
""",
)
@argument("document", nargs=-1, metavar="[DOCUMENT]...", shell_complete=complete_names(documents))
@option(OWN, "--output", "-o", type=PATH, metavar="FILE", help="Output file.  [default: stdout]")
@take(TALK)
def command(document: tuple[str, ...], output: Path | None) -> None:
    """Write the JSON Schema of DOCUMENT: a command that prints it with --json, or a file such as report.json.

    Without a name, all names are listed. The schema of a file allows no other keys than those of its
    format version; that of a command allows more keys, because later versions may add some.
    """
    from ptq_cli.core.errors import UsageError
    from ptq_cli.core.files import write_text
    from ptq_cli.terminal.output import say
    from ptq_cli.terminal.phrases import shown_path

    if not document:
        if output is not None:
            raise UsageError("--output needs the name of a document", hint="ptq schema lists the names")
        click.echo("\n".join(documents()))
        return
    text = _schema(" ".join(document))
    if output is None:
        click.echo(text, nl=False)
        return
    write_text(output, text)
    say(f"wrote {shown_path(output)}")


def _schema(name: str) -> str:
    from ptq_cli.cli.document_registry import COMMANDS, FILES, document_type
    from ptq_cli.core.json_schema import document_schema, file_schema
    from ptq_cli.core.known_names import require_known
    from ptq_cli.setup.recipe_schema import recipe_schema

    require_known("document", name, documents())
    if name == RECIPE:
        return recipe_schema()
    if name in FILES:
        return file_schema(document_type(FILES[name]))
    return document_schema(f"What ptq {name} prints with --json", list(map(document_type, COMMANDS[name])))
