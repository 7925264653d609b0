"""Help under headings: each option names its heading, and all commands print the headings in one order."""

from collections.abc import Callable
from typing import Any

import click

from ptq_cli.cli.help.help_formatter import NarrowHelpFormatter, option_columns
from ptq_cli.core.documents.attribute_texts import docstring
from ptq_cli.core.errors import UsageError
from ptq_cli.core.known_names import did_you_mean

OWN = "Options"
DATA = "Data"
MODEL = "Model"
RANGES = "Ranges"
WEIGHTS = "Weights"
ACTIVATIONS = "Activations"
LAYERS = "Layers"
EVALUATION = "Evaluation and gate"
RUNNING = "Running"
GLOBAL = "Global options"
SECTIONS = (OWN, DATA, MODEL, RANGES, WEIGHTS, ACTIVATIONS, LAYERS, EVALUATION, RUNNING, GLOBAL)
"""The headings in the order of ``--help``: a command's own options first, those of all commands last."""
HELP_OPTIONS = ("-h", "--help")


class FilledParameter(click.Parameter):
    """An option or argument whose value is not empty: an empty path would mean the current folder."""

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """Return the value as its type.

        Raises:
            UsageError: it is empty, or one of several is.
        """
        if value == "" or (isinstance(value, (list, tuple)) and "" in value):
            raise UsageError(
                f"{self._words()} is empty",
                hint="give one, or leave it out; a variable of the shell may not be set",
            )
        return super().type_cast_value(ctx, value)

    def _words(self) -> str:
        if isinstance(self, click.Option):
            return f"the value of {self.opts[0]}"
        name = (self.name or "").replace("_", " ")
        return f"the {name.removesuffix('s') if self.nargs < 0 else name}'s name"


class SectionOption(FilledParameter, click.Option):
    """An option that stands under a heading."""

    def __init__(self, *arguments: Any, section: str, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.section = section


def option(section: str, *names: str, **attributes: Any) -> Callable[[Any], Any]:
    """Return ``click.option`` for an option under a heading."""
    return click.option(*names, cls=SectionOption, section=section, **attributes)


class NamedArgument(FilledParameter, click.Argument):
    """An argument that names something."""


def argument(name: str, **attributes: Any) -> Callable[[Any], Any]:
    """Return ``click.argument`` for an argument that is not empty."""
    return click.argument(name, cls=NamedArgument, **attributes)


def options_by_section(command: click.Command, context: click.Context) -> dict[str, list[click.Option]]:
    """Return a command's visible options by heading; those that click adds (``--help``) are global ones."""
    found: dict[str, list[click.Option]] = {section: [] for section in SECTIONS}
    for item in command.get_params(context):
        if isinstance(item, click.Option):
            found[getattr(item, "section", GLOBAL)].append(item)
    return {section: options for section, options in found.items() if options}


def _write_options(command: click.Command, context: click.Context, formatter: click.HelpFormatter) -> None:
    sections = options_by_section(command, context)
    records = {
        section: [record for item in options if (record := item.get_help_record(context)) is not None]
        for section, options in sections.items()
    }
    names = [name for rows in records.values() for name, _ in rows]
    width = min(max(map(len, names)), option_columns(formatter.width))
    for section, rows in records.items():
        with formatter.section(section):
            # Padded, so that the texts of all sections begin in one column.
            formatter.write_dl([(name.ljust(width), text) for name, text in rows])


class HelpContext(click.Context):
    """A context whose help breaks no word."""

    formatter_class = NarrowHelpFormatter


class SectionCommand(click.Command):
    """A command whose help has headings."""

    context_class = HelpContext

    def __init__(self, *arguments: Any, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        if self.help is None and self.callback is not None:  # python -OO
            self.help = docstring(self.callback)

    def get_help_option_names(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the same names in any context: click keeps the option of the first one."""
        return list(HELP_OPTIONS)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under their headings."""
        _write_options(self, ctx, formatter)


class SectionGroup(SectionCommand, click.Group):
    """A command that has commands, which its help lists first; an unknown one gets the nearest as a hint."""

    command_class = SectionCommand

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, and the options under their headings."""
        self.format_commands(ctx, formatter)
        _write_options(self, ctx, formatter)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the named command and the words after it.

        Raises:
            UsageError: there is no command of that name.
        """
        name, names = args[0], self.list_commands(ctx)
        if name not in names and not name.startswith("-") and not ctx.resilient_parsing:
            missing = "there is no" if ctx.parent is None else f"{ctx.command_path} has no"
            raise UsageError(
                f"{missing} command '{name}'{did_you_mean(name, names)}",
                hint=f"the commands are {', '.join(names)}; {ctx.command_path} --help describes them",
            )
        return super().resolve_command(ctx, args)
