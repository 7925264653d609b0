"""What a command prints on stdout: lines, tables, or one JSON document."""

import json
import shutil
import sys
from typing import Any, Literal

import click

from ptq_cli.cli.quiet_flag import is_quiet
from ptq_cli.cli.shown.printable import printable
from ptq_cli.report.text.summary import Table

PIPE_WIDTH = 120
"""Columns if stdout is not a terminal and COLUMNS is not set; a log viewer wraps long lines itself."""
WRAPPED_WIDTH = 24
"""Least width of a column whose cells wrap."""
PADDING = 3
PLAIN = str.maketrans("▁▂▃▄▅▆▇█│└┘┌┐─├┤◄►…≤–·µ", "__..::##|++++-||<>~<-.u")  # noqa: RUF001 - the dash itself
"""Replacements, of equal width, for characters that the terminal's encoding does not have."""
UNKNOWN = "–"  # noqa: RUF001 - a dash
"""In a table: this was not kept."""
CHOSEN = "*"
"""In a table or a drawing: the method that was chosen."""


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(value, indent=2))


def print_table(
    table: Table, *, right: tuple[int, ...] = (), whole: tuple[int, ...] = (), optional: tuple[int, ...] = ()
) -> list[str]:
    """Print a table that fits the terminal, and return the headers of the columns that were left out.

    Args:
        table: header and rows of text.
        right: columns of numbers, which are aligned to the right.
        whole: columns whose cells stay on one line; the others wrap.
        optional: columns that are left out, the last first, if the terminal is too narrow for them.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    if not table.rows:
        return []
    # The width is COLUMNS, or the terminal's, or PIPE_WIDTH.
    width = shutil.get_terminal_size((PIPE_WIDTH, 0)).columns
    shown, fits = _columns_that_fit(table, width, whole, optional)
    # Text and not markup: a layer's name may hold [brackets].
    drawn = RichTable(box=box.SIMPLE_HEAD)
    for index in shown:
        side: Literal["left", "right"] = "right" if index in right else "left"
        drawn.add_column(
            Text(table.header[index]), justify=side, no_wrap=fits and index in whole, overflow="fold"
        )
    for row in table.rows:
        drawn.add_row(*(Text(_one_line(row[index]), style=_style(row[index])) for index in shown))
    console = Console(width=width, highlight=False)
    # Through click: at a broken pipe (ptq inspect | head) rich would exit with status 1 by itself.
    with console.capture() as captured:
        console.print(drawn)
    click.echo(_writable(captured.get()), nl=False)
    return [header for index, header in enumerate(table.header) if index not in shown]


def _columns_that_fit(
    table: Table, width: int, whole: tuple[int, ...], optional: tuple[int, ...]
) -> tuple[list[int], bool]:
    """Return the columns to show, and whether those that stay on one line leave room for the others."""
    needs = {
        index: max(len(row[index]) for row in (table.header, *table.rows))
        if index in whole
        else WRAPPED_WIDTH
        for index in range(len(table.header))
    }
    shown = list(needs)
    for index in reversed(optional):
        if sum(needs[item] + PADDING for item in shown) <= width:
            break
        shown.remove(index)
    # Half the width is enough for cells that wrap; that is better than splitting a name.
    return shown, sum(needs[item] + PADDING for item in shown) <= width + WRAPPED_WIDTH // 2


def say(text: str) -> None:
    """Print a line of the result."""
    click.echo(_writable(printable(text)))


def tell(text: str) -> None:
    """Print a message that is not part of the result, on stderr."""
    if not is_quiet():
        click.echo(printable(text), err=True)


def _writable(text: str) -> str:
    """Return ``text`` in characters that stdout can encode: a Latin-1 terminal has no bars and no boxes."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(PLAIN).encode(encoding, "replace").decode(encoding)
    return text


def _one_line(cell: str) -> str:
    return printable(cell).replace("\n", "?")


def _style(cell: str) -> str:
    # The word carries the meaning; the color only helps to find it.
    return {"FAIL": "bold red", "pass": "green", "float": "yellow"}.get(cell.partition(",")[0], "")
