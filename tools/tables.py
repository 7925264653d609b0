"""Markdown tables and lists of plain text."""

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


def listed(entries: Sequence[tuple[str, str, str]]) -> str:
    """Return a Markdown list of names, each with what is said of it in brackets and a sentence.

    A list holds long sentences, for which the columns of a table are too narrow on a phone.

    Example:
        >>> print(listed([("a", "integer", "Bits."), ("b", "", "Axis.")]))
        - a (integer): Bits.
        - b: Axis.
    """
    lines = [
        (f"{name} ({detail})" if detail else name, " ".join(text.split())) for name, detail, text in entries
    ]
    return "\n".join(f"- {name}: {text}" for name, text in lines)


def code(text: str) -> str:
    """Return inline code, or an empty text for an empty text.

    Example:
        >>> code("--run"), code("")
        ('`--run`', '')
    """
    return f"`{text}`" if text else ""
