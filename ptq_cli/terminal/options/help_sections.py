"""Help under headings: each option names its heading, and all commands print the headings in one order."""

import re
from collections.abc import Callable, Iterable
from typing import Any

import click

from ptq_cli.core.documents import docstring
from ptq_cli.core.errors import UsageError
from ptq_cli.core.words import did_you_mean
from ptq_cli.terminal.phrases import fill

ROOMY = 70  # From this width on, options and their texts have the columns that click gives them
NARROW_OPTIONS = 20  # Columns of the options on a narrower terminal; a longer one has a line of its own
AS_IT_IS = "\b"  # Click's mark of a paragraph whose lines stay as they are
PIECES = re.compile(r"-\S+(?: (?!-)\S+)?|\S+")  # A flag with its value, or a word


class NarrowHelpFormatter(click.HelpFormatter):
    """Click's formatter, except that it never breaks a word: not at a hyphen, and not to fit a column."""

    def write_text(self, text: str) -> None:
        """Write paragraphs; a line of an example that is too long continues after a backslash."""
        indent = " " * self.current_indent
        paragraphs = [self._paragraph(paragraph, indent) for paragraph in text.strip("\n").split("\n\n")]
        self.write("\n\n".join(paragraphs) + "\n")

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write options or commands and, beside them, what they do."""
        listed = list(rows)
        first = min(max(len(name) for name, _ in listed), option_columns(self.width, col_max)) + col_spacing
        indent = " " * self.current_indent
        margin = " " * (first + self.current_indent)
        for name, text in listed:
            lines = fill(text, self.width, margin).split("\n")
            if len(name) + col_spacing > first:
                self.write(f"{indent}{name}\n")
            else:
                lines[0] = f"{indent}{name.ljust(first)}{lines[0].lstrip()}"
            self.write("\n".join(lines) + "\n")

    def _paragraph(self, text: str, indent: str) -> str:
        lines = text.split("\n")
        if lines[0].strip() != AS_IT_IS:
            return fill(" ".join(line.strip() for line in lines), self.width, indent)
        return "\n".join(command_line(indent + line, self.width) for line in lines[1:])


def option_columns(width: int, most: int = 30) -> int:
    """Return how many columns an option and its value may have beside their text."""
    return most if width >= ROOMY else min(most, NARROW_OPTIONS)


def command_line(line: str, width: int) -> str:
    r"""Write an example of a command so that it fits, and can still be copied into a shell.

    Example:
        >>> print(command_line("  ptq gate report.json --max-drop top1=0.01", 32))
          ptq gate report.json \
              --max-drop top1=0.01
    """
    if len(line) <= width:
        return line
    start = line[: len(line) - len(line.lstrip())]
    lines = [""]
    for piece in PIECES.findall(line):
        longer = f"{lines[-1]} {piece}" if lines[-1] else start + piece
        if lines[-1] and len(longer) + len(" \\") > width:
            lines.append(f"{start}    {piece}")
        else:
            lines[-1] = longer
    return " \\\n".join(lines)


OWN = "Options"
ELSEWHERE = "On other devices"
DATA = "Data"
MODEL = "Model"
RANGES_HEADING = "Ranges"
WEIGHTS = "Weights"
_ACTIVATIONS = "Activations"
LAYERS = "Layers"
EVALUATION = "Evaluation and gate"
RUNNING = "Running"
GLOBAL = "Global options"
# The headings in the order of ``--help``: a command's own options first; those of all commands only ptq's
# help lists.
SECTIONS = (
    OWN,
    ELSEWHERE,
    DATA,
    MODEL,
    RANGES_HEADING,
    WEIGHTS,
    _ACTIVATIONS,
    LAYERS,
    EVALUATION,
    RUNNING,
    GLOBAL,
)
EVERY_COMMAND = "Every command also takes -q, --debug and -h; ptq --help describes them."
HELP_OPTIONS = ("-h", "--help")


class FilledParameter(click.Parameter):
    """An option or argument whose value is not empty: an empty path would mean the current folder."""

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """Return the value as its type."""
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
    if context.parent is not None:
        sections.pop(GLOBAL, None)
    records = {
        section: [record for item in options if (record := item.get_help_record(context)) is not None]
        for section, options in sections.items()
    }
    names = [name for rows in records.values() for name, _ in rows]
    width = min(max(map(len, names), default=0), option_columns(formatter.width))
    for section, rows in records.items():
        with formatter.section(section):
            # Padded, so that the texts of all sections begin in one column.
            formatter.write_dl([(name.ljust(width), text) for name, text in rows])


class HelpContext(click.Context):
    """A context whose help breaks no word."""

    formatter_class = NarrowHelpFormatter


class SectionCommand(click.Command):
    """A command whose help has headings.

    Attributes:
        once: the keys ``run.…`` of ``--set`` that have an effect on it.
        only: the one section whose keys its ``--set`` takes; empty for all.
    """

    context_class = HelpContext

    def __init__(
        self, *arguments: Any, once: tuple[str, ...] = (), only: str = "", **attributes: Any
    ) -> None:
        super().__init__(*arguments, **attributes)
        self.once, self.only = once, only
        if self.help is None and self.callback is not None:  # python -OO
            self.help = docstring(self.callback)

    def get_help_option_names(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the same names in any context: click keeps the option of the first one."""
        return list(HELP_OPTIONS)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under their headings."""
        _write_options(self, ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, and what every command takes."""
        super().format_epilog(ctx, formatter)
        if ctx.parent is not None:
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(EVERY_COMMAND)


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
        """Return the named command and the words after it."""
        name, names = args[0], self.list_commands(ctx)
        if name not in names and not name.startswith("-") and not ctx.resilient_parsing:
            missing = "there is no" if ctx.parent is None else f"{ctx.command_path} has no"
            raise UsageError(
                f"{missing} command '{name}'{did_you_mean(name, names)}",
                hint=f"the commands are {', '.join(names)}; {ctx.command_path} --help describes them",
            )
        return super().resolve_command(ctx, args)
