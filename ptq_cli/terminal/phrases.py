"""What lines about any result are made of: counts, paths, and the next command."""

import os
import re
import shlex
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ptq_cli.core.words import visible

if TYPE_CHECKING:
    from ptq_cli.setup.run_directory import RunDirectory


def counted(number: int, noun: str) -> str:
    """Write a number and its noun."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def closeness(difference: float) -> str:
    """Write how far two outputs are apart, as a share of the largest output.

    Example:
        >>> closeness(2.4e-7), closeness(0.0)
        ('within 2e-07 of its largest output', 'exactly')
    """
    return f"within {difference:.1g} of its largest output" if difference else "exactly"


def shown_path(path: Path) -> str:
    """Return a path as a user would type it: relative if it is below the current folder."""
    absolute, here = path.absolute(), Path.cwd()
    return str(absolute.relative_to(here)) if absolute.is_relative_to(here) else str(path)


def next_step(command: str, run: "RunDirectory", model: Path | None = None) -> str:
    """Return the next command; it names the run directory and the model where they are not the default."""
    from ptq_cli.setup.run_directory import DEFAULT_RUN

    words = [command]
    if model is not None and os.path.realpath(model) != os.path.realpath(run.quantized_model):
        # A name that begins with a hyphen would be read as an option.
        words.append(shlex.quote(str(model) if not str(model).startswith("-") else f"./{model}"))
    if run.path != DEFAULT_RUN:
        words.append(f"--run {shlex.quote(str(run.path))}")
    return f"next: {' '.join(words)}"


def counting_notes(assumed: Mapping[str, int], once: Mapping[str, str], hint: str) -> Iterator[str]:
    """Yield what multiply-accumulates were counted for: sizes that were assumed, and one step of loops."""
    if assumed:
        yield f"note: counted for {', '.join(f'{name} = {size}' for name, size in assumed.items())}; {hint}"
    if loops := " and ".join(f"'{name}'" for name in dict.fromkeys(once.values())):
        yield f"note: counted for one step of {loops}: only a run tells how many there are"


def printable(text: str) -> str:
    r"""Return ``text`` with every control character but the newline replaced.

    Names from a model or a file may contain escape sequences; the terminal must not execute them.
    """
    return visible(text, "?")


def as_typed(text: str, folder: Path) -> str:
    """Return ``text`` with paths below ``folder`` made relative to it, as the user typed them.

    Recipes hold absolute paths, because their layers come from different folders; in a message a long path
    hides the file's name.
    """
    prefix = os.path.join(folder, "")  # noqa: PTH118 - adds the separator only where missing
    if prefix == os.sep:
        return text
    return re.sub(rf"(?<![\w./~-]){re.escape(prefix)}", "", text)


# What stays on one line although it has a space.
_TOGETHER = re.compile(r"\[default: [^\]]{1,24}\]|\d (?:%|dB|[kMGT]?i?B|[nµm]?s|[kMGT])(?!\w)")
# Stands for such a space. It is of Unicode's private use, and no line breaker takes it for a space.
GLUE = "\ue000"


def glue(text: str) -> str:
    r"""Replace each space that a line must not end at.

    Example:
        >>> glue("41.5 MB of 2 GB").split()
        ['41.5\ue000MB', 'of', '2\ue000GB']
    """
    return _TOGETHER.sub(lambda match: match[0].replace(" ", GLUE), text)


def unglue(text: str) -> str:
    """Put the spaces back."""
    return text.replace(GLUE, " ")


def longest_word(text: str) -> int:
    """Return how many columns the longest word has."""
    return max(map(len, glue(text).split()), default=0)


def fill(text: str, width: int, first: str = "", *, rest: str | None = None, fold: bool = False) -> str:
    r"""Wrap a paragraph between its words.

    ``first`` and ``rest`` begin the first and the other lines; ``fold`` splits a word that is longer than a
    line.

    Example:
        >>> fill("see ptq-cli[plot] or --no-strict", 20, "  ")
        '  see ptq-cli[plot]\n  or --no-strict'
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
