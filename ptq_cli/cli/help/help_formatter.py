"""How help fits a terminal: lines end between words, and an example still runs when it is copied."""

import re
from collections.abc import Iterable

import click

from ptq_cli.cli.shown.terminal.word_wrap import fill

ROOMY = 70
"""From this width on, options and their texts have the columns that click gives them."""
NARROW_OPTIONS = 20
"""Columns of the options on a narrower terminal; a longer one has a line of its own."""
AS_IT_IS = "\b"
"""Click's mark of a paragraph whose lines stay as they are."""
PIECES = re.compile(r"-\S+(?: (?!-)\S+)?|\S+")
"""A flag with its value, or a word."""


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
