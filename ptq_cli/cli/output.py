"""What a command prints on stdout: lines, tables, or one JSON document."""

import json
import shutil
import sys
from typing import Any

import click

from ptq_cli.report.summary import Table

PIPE_WIDTH = 120
"""Columns where stdout is no terminal: a log or a file wraps by itself."""


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(value, indent=2))


def print_table(table: Table, title: str = "", *, right: tuple[int, ...] = ()) -> None:
    """Print a table that fits the terminal; long cells wrap.

    Args:
        table: header and rows of text.
        title: stands above it.
        right: columns of numbers, which are aligned to the right.
    """
    from rich import box
    from rich.console import Console
    from rich.text import Text

    if not table.rows:
        return
    from rich.table import Table as RichTable

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPE_WIDTH
    console = Console(width=width, highlight=False)
    # Text and not markup: a layer's name may hold [brackets].
    drawn = RichTable(
        box=box.SIMPLE_HEAD, title=Text(title, style="bold") if title else None, title_justify="left"
    )
    for index, name in enumerate(table.header):
        drawn.add_column(Text(name), justify="right" if index in right else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(_one_line(cell), style=_style(cell)) for cell in row))
    console.print(drawn)


def tell(text: str) -> None:
    """Say something that is no result: on stderr."""
    click.echo(text, err=True)


def _one_line(cell: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in cell)


def _style(cell: str) -> str:
    # The word says it; the colour only helps to find it.
    return {"FAIL": "bold red", "pass": "green", "float": "yellow"}.get(cell, "")
