"""Markdown tables of plain text."""

from collections.abc import Sequence


def cell(text: str) -> str:
    r"""Return text escaped so that it stays inside its cell.

    Example:
        >>> print(cell("a|b"))
        a\|b
    """
    return " ".join(text.split()).replace("|", "\\|")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table.

    Example:
        >>> print(table(["a", "b"], [["1", "2"]]))
        | a | b |
        | --- | --- |
        | 1 | 2 |
    """
    lines = [header, ["---"] * len(header), *([cell(text) for text in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code(text: str) -> str:
    """Return inline code, or an empty text for an empty text.

    Example:
        >>> code("--run"), code("")
        ('`--run`', '')
    """
    return f"`{text}`" if text else ""
