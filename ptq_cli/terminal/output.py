"""What a command prints on stdout: lines, tables as wide as the terminal, or one JSON document."""

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

import click

from ptq_cli.terminal.phrases import fill, glue, longest_word, printable, unglue

if TYPE_CHECKING:
    from ptq_cli.evaluation.document.gate_result import ReportWarning
    from ptq_cli.report.text.numbers import Table


# Width that a column whose cells wrap should have; it is less only if the words are short enough.
WRAPPED_WIDTH = 24
PADDING = 3
BELOW_NAMES = "  "  # Indents the cells below a name


def column_widths(
    table: "Table", width: int, *, right: Sequence[int], whole: Sequence[int], optional: Sequence[int]
) -> dict[int, int] | None:
    """Return the width of each column that is shown, or None if the table would have to split a word.

    Optional columns are left out, the last first, while the terminal is too narrow. If that is not enough,
    columns of numbers wrap between words as well, and the others become narrower.
    """
    natural = [max(map(len, column)) for column in _columns(table)]
    least = [max(map(longest_word, column)) for column in _columns(table)]
    wished = [max(word, min(full, WRAPPED_WIDTH)) for word, full in zip(least, natural, strict=True)]
    shown = list(range(len(natural)))
    kept = {*right, *whole}
    needs = [natural[index] if index in kept else wished[index] for index in shown]
    for index in reversed(optional):
        if _total([needs[item] for item in shown]) <= width:
            break
        shown.remove(index)
    for smallest in (
        needs,
        [natural[index] if index in kept else least[index] for index in range(len(natural))],
        [natural[index] if index in whole else least[index] for index in range(len(natural))],
    ):
        if _total([smallest[index] for index in shown]) <= width:
            return _shared_out(
                {index: smallest[index] for index in shown}, {index: natural[index] for index in shown}, width
            )
    return None


def widths_below_names(table: "Table", width: int, *, optional: Sequence[int]) -> dict[int, int] | None:
    """Return the widths of the columns if each row's first cell has a line of its own, above the others.

    None if the others do not fit on one line then, or if there are none.
    """
    room = width - len(BELOW_NAMES)
    natural = {index: max(map(len, column)) for index, column in enumerate(_columns(table)) if index}
    for index in (*reversed(optional), 0):
        if natural and _total(list(natural.values())) <= room:
            return natural
        natural.pop(index, None)
    return None


def _columns(table: "Table") -> list[tuple[str, ...]]:
    return list(zip(table.header, *table.rows, strict=True))


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + PADDING * len(widths)


def _shared_out(least: dict[int, int], natural: dict[int, int], width: int) -> dict[int, int]:
    """Give the room that is left to the columns that wrap, a column at a time to the narrowest."""
    widths = dict(least)
    while True:
        room = width - _total(list(widths.values()))
        waiting = [index for index in widths if widths[index] < natural[index]]
        if room <= 0 or not waiting:
            return widths
        narrowest = min(waiting, key=lambda index: (widths[index], index))
        widths[narrowest] += 1


def name_line(name: str, width: int) -> str:
    """Write the first cell of a row on lines of its own; a tree's branches keep their indentation."""
    branch = " " * (len(name) - len(name.lstrip()))
    return fill(name.strip() or "(no name)", width, f"  {branch}", fold=True)


def row_blocks(table: "Table", width: int) -> str:
    """Write each row as a block: its first cell, and below it the others with their headers.

    A name that is longer than a line is split, since there is no other place for it.

    Example:
        >>> from ptq_cli.report.text.numbers import Table
        >>> print(row_blocks(Table(("layer", "float", "int8"), (("head/Gemm", "2.1", "2.0"),)), 20))
          head/Gemm
            float: 2.1;
            int8: 2.0
    """
    blocks = []
    for name, *cells in table.rows:
        pairs = zip(table.header[1:], cells, strict=True)
        fields = "; ".join(f"{header}: {cell.strip()}" for header, cell in pairs if cell.strip())
        blocks.append(name_line(name, width))
        blocks += [fill(fields, width, "    ", fold=True)] if fields else []
    return "\n".join(blocks)


KEY = f"{__name__}.quiet"  # Where click's contexts, which all share it, keep that the option was given


def keep_quiet(context: click.Context, _parameter: click.Parameter, value: Any) -> None:
    """Remember that ``--quiet`` was given, before or after the command's name."""
    if value:
        context.meta[KEY] = True


def is_quiet() -> bool:
    """Tell whether notes, details, progress and next steps are to be left out."""
    context = click.get_current_context(silent=True)
    return context is not None and KEY in context.meta


# Columns if stdout is not a terminal and COLUMNS is not set; a log viewer wraps long lines itself.
PIPE_WIDTH = 120
# Replacements, of equal width, for characters that the terminal's encoding does not have.
_PLAIN = str.maketrans("▁▂▃▄▅▆▇█│└┘┌┐─├┤◄►…≤–·µ", "__..::##|++++-||<>~<-.u")  # noqa: RUF001 - the dash itself
# In a table: this was not kept.
UNKNOWN = "–"  # noqa: RUF001 - a dash
CHOSEN = "*"  # In a table or a drawing: the method that was chosen


def print_json(value: object) -> None:
    """Print one JSON document."""
    from ptq_cli.core.documents import to_json

    click.echo(to_json(value), nl=False)


def print_table(
    table: "Table",
    *,
    right: tuple[int, ...] = (),
    whole: tuple[int, ...] = (),
    optional: tuple[int, ...] = (),
) -> list[str]:
    """Print a table that fits the terminal, and return the headers of the columns that were left out.

    If the words of a table are too long for the terminal, each row is printed as a block of lines.

    Columns of ``right`` are aligned to the right, cells of ``whole`` ones stay on one line, and ``optional``
    ones are left out, the last first, where the terminal is too narrow.
    """
    if not table.rows:
        return []
    clean = replace(table, rows=tuple(tuple(map(_one_line, row)) for row in table.rows))
    width = terminal_width()
    widths = column_widths(clean, width, right=right, whole=whole, optional=optional)
    if widths is not None:
        text = _drawn(clean, widths, right)
    elif (widths := widths_below_names(clean, width, optional=optional)) is not None:
        text = _below_names(clean, widths, right, width)
        widths[0] = 0
    else:
        click.echo(_writable(f"\n{row_blocks(clean, width)}\n"))
        return []
    click.echo(_writable(text), nl=False)
    return [header for index, header in enumerate(table.header) if index not in widths]


def _below_names(table: "Table", widths: dict[int, int], right: tuple[int, ...], width: int) -> str:
    """Draw the columns but the first, and put the first cell of each row above it."""
    _, header, rule, *lines = [
        f"{BELOW_NAMES}{line}".rstrip() for line in _drawn(table, widths, right).split("\n")
    ]
    rows = [
        line
        for row, cells in zip(table.rows, lines, strict=False)
        for line in (name_line(row[0], width), *([cells] if cells else []))
    ]
    return "\n".join(("", f"  {table.header[0]}", header, rule, *rows, "", ""))


def _drawn(table: "Table", widths: dict[int, int], right: tuple[int, ...]) -> str:
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    # Text and not markup: a layer's name may hold [brackets].
    drawn = RichTable(box=box.SIMPLE_HEAD)
    for index, width in widths.items():
        side: Literal["left", "right"] = "right" if index in right else "left"
        drawn.add_column(Text(glue(table.header[index])), justify=side, width=width, overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(glue(row[index]), style=_style(row[index])) for index in widths))
    # As wide as the table is; what is beside it was decided above.
    console = Console(width=sum(widths.values()) + PADDING * len(widths) + 1, highlight=False)
    # Through click: at a broken pipe (ptq inspect | head) rich would exit with status 1 by itself.
    with console.capture() as captured:
        console.print(drawn)
    return "".join(f"{line.rstrip()}\n" for line in unglue(captured.get()).splitlines())


def terminal_width() -> int:
    """Return COLUMNS, or the terminal's width, or ``PIPE_WIDTH``."""
    return shutil.get_terminal_size((PIPE_WIDTH, 0)).columns


def fitted(text: str, stream: TextIO) -> str:
    """Return lines that fit the terminal behind a stream; a pipe or a file gets them as they are."""
    if not stream.isatty():
        return text
    width = terminal_width()
    return "\n".join(
        line if len(line) <= width else fill(line, width, rest="  ") for line in text.split("\n")
    )


def say(text: str) -> None:
    """Print a line of the result."""
    click.echo(_writable(fitted(printable(text), sys.stdout)))


def detail(text: str) -> None:
    """Print a line that ``--quiet`` leaves out: neither a verdict, nor a path, nor a warning."""
    if not is_quiet():
        say(text)


def warn(text: str) -> None:
    """Print a warning on stderr, with ``--quiet`` too: what it says may make the result useless."""
    click.echo(fitted(printable(f"warning: {text}"), sys.stderr), err=True)


def tell(text: str) -> None:
    """Print a message that is not part of the result, on stderr; ``--quiet`` leaves it out."""
    if not is_quiet():
        click.echo(fitted(printable(text), sys.stderr), err=True)


def _writable(text: str) -> str:
    """Return ``text`` in characters that stdout can encode: a Latin-1 terminal has no bars and no boxes."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_PLAIN).encode(encoding, "replace").decode(encoding)
    return text


def _one_line(cell: str) -> str:
    return printable(cell).replace("\n", "?")


def _style(cell: str) -> str:
    # The word carries the meaning; the color only helps to find it.
    return {"FAIL": "bold red", "pass": "green", "float": "yellow"}.get(cell.partition(",")[0], "")


MOST_WARNINGS = 3


def warn_of_result(warnings: "Iterable[ReportWarning]") -> None:
    """Print on stderr what a user should know of a result: three warnings at most, each with its remedies."""
    hints: dict[str, None] = {}
    found = [*warnings]
    for warning in found[:MOST_WARNINGS]:
        warn(warning.message)
        hints |= dict.fromkeys(warning.hints)
    if (left := len(found) - MOST_WARNINGS) > 0:
        tell(f"{left} more warning{'s' if left > 1 else ''}: --json lists them")
    for hint in hints:
        tell(f"hint: {hint}")


# Environment variable with the summary's file; GitHub sets it for each step of a job.
VARIABLE = "GITHUB_STEP_SUMMARY"


def add_to_step_summary(markdown: str) -> None:
    """Append Markdown to the job summary, if there is one.

    If it cannot be written, a warning on stderr says so; the verdict does not change.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return
    try:
        with Path(path).open("a", encoding="utf-8") as page:
            page.write(f"{markdown.rstrip()}\n\n")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        warn(f"cannot write the step summary '{path}' (set by {VARIABLE}): {reason}")
