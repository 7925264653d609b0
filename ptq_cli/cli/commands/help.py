"""``ptq help``."""

import click

from ptq_cli.core.errors import UsageError
from ptq_cli.terminal.options.completion import complete_commands
from ptq_cli.terminal.options.help_sections import SectionCommand, SectionGroup, argument
from ptq_cli.terminal.options.shared_options import TALK, take


@click.command(
    cls=SectionCommand,
    short_help="Show the help of a command.",
    epilog="""\b
Examples:
  ptq help
  ptq help quantize
  ptq help calibration show
""",
)
@argument("command", nargs=-1, metavar="[COMMAND]...", shell_complete=complete_commands)
@take(TALK)
@click.pass_context
def command(context: click.Context, command: tuple[str, ...]) -> None:
    """Show the help of COMMAND, or of ptq itself if no COMMAND is given.

    It is the same text as ptq COMMAND --help prints.
    """
    found = context.find_root()
    for word in command:
        group = found.command
        if not isinstance(group, SectionGroup):
            raise UsageError(
                f"{found.command_path} has no commands, so there is no '{word}'",
                hint=f"ptq help {found.command_path.removeprefix('ptq ')} describes it",
            )
        _, inner, _ = group.resolve_command(found, [word])
        if inner is None:
            raise UsageError(f"there is no command '{word}'", hint="ptq help lists the commands")
        found = inner.context_class(inner, info_name=word, parent=found)
    click.echo(found.get_help())
