"""Lines that end between words: no name, number or unit is split."""

import re
import textwrap

TOGETHER = re.compile(r"\[default: [^\]]{1,24}\]|\d (?:%|dB|[kMGT]?i?B|[nµm]?s|[kMGT])(?!\w)")
"""What stays on one line although it has a space."""
GLUE = "\ue000"
"""Stands for such a space. It is of Unicode's private use, and no line breaker takes it for a space."""


def glue(text: str) -> str:
    r"""Replace each space that a line must not end at.

    Example:
        >>> glue("41.5 MB of 2 GB").split()
        ['41.5\ue000MB', 'of', '2\ue000GB']
    """
    return TOGETHER.sub(lambda match: match[0].replace(" ", GLUE), text)


def unglue(text: str) -> str:
    """Put the spaces back."""
    return text.replace(GLUE, " ")


def longest_word(text: str) -> int:
    """Return how many columns the longest word has.

    Example:
        >>> longest_word("41.5 MB of data")
        7
    """
    return max(map(len, glue(text).split()), default=0)


def fill(text: str, width: int, first: str = "", *, rest: str | None = None, fold: bool = False) -> str:
    r"""Wrap a paragraph between its words.

    Args:
        text: the paragraph, without line breaks.
        width: columns of a line.
        first: begins the first line.
        rest: begins the other lines; None if it is like the first.
        fold: split a word that is longer than a line; otherwise it stays whole, and its line is longer.

    Example:
        >>> fill("see ptq-cli[plot] or --no-evaluate", 20, "  ")
        '  see ptq-cli[plot]\n  or --no-evaluate'
    """
    lines = textwrap.fill(
        glue(text),
        max(width, len(first) + 1),
        initial_indent=first,
        subsequent_indent=first if rest is None else rest,
        break_long_words=fold,
        break_on_hyphens=False,
    )
    return unglue(lines)
