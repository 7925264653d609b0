"""Texts of errors in the length that a terminal has room for."""

LONGEST_TEXT = 4000
"""Characters of a message or a hint: a damaged file may have names of any length."""


def cut(text: str) -> str:
    """Return a text, without its middle if it is longer than ``LONGEST_TEXT``.

    Example:
        >>> cut("short"), len(cut("long" * 2000)) < LONGEST_TEXT
        ('short', True)
    """
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[: LONGEST_TEXT // 2]} … {text[-LONGEST_TEXT // 4 :]}"


def first_line(error: BaseException, limit: int = 160) -> str:
    r"""Return the first line of what another library said, cut to ``limit`` characters.

    Example:
        >>> first_line(ValueError("bad\nlong story"))
        'bad'
        >>> first_line(KeyError())
        'KeyError'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:limit] if lines else type(error).__name__
