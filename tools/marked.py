"""Parts of a page that a command writes, between ``<!-- name:begin -->`` and ``<!-- name:end -->``."""

from pathlib import Path


def fill(text: str, name: str, content: str) -> str:
    """Return ``text`` with the part between the two markers of ``name`` replaced.

    Example:
        >>> fill("<!-- x:begin -->old<!-- x:end -->", "x", "new").splitlines()
        ['<!-- x:begin -->', 'new', '<!-- x:end -->']
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the text has no part {begin} … {end}")
    return f"{before}{begin}\n{content}\n{end}{after}"


def write_part(page: Path, name: str, content: str) -> None:
    """Replace a part of a page on disk."""
    page.write_text(fill(page.read_text(encoding="utf-8"), name, content), encoding="utf-8")
