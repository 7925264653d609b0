"""Which columns of a table a terminal has room for, and how wide each is."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptq_cli.terminal.phrases import fill, longest_word

if TYPE_CHECKING:
    from ptq_cli.report.text.numbers import Table

WRAPPED_WIDTH = 24
"""Width that a column whose cells wrap should have; it is less only if the words are short enough."""
PADDING = 3
BELOW_NAMES = "  "
"""Indents the cells below a name."""


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
