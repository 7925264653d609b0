"""Bash cuts words at "=": KEY=VALUE of ``--set`` is put together again before it is completed."""

import os
from collections.abc import Sequence

from click.shell_completion import BashComplete, CompletionItem, split_arg_string

SET = "--set"
SPACE = "COMPREPLY+=($value)"
NO_SPACE = f"{SPACE}\n            [[ $value == *= ]] && compopt -o nospace"


def join_assignments(words: Sequence[str]) -> tuple[list[str], str]:
    """Return words with each KEY=VALUE as one, and what was cut off the last one.

    Example:
        >>> join_assignments(["export", "--set", "amax.bins", "=", "8", "--set", "text.tail", "="])
        (['export', '--set', 'amax.bins=8', '--set', 'text.tail='], 'text.tail=')
    """
    joined: list[str] = []
    cut = ""
    for word in words:
        if joined[-2:-1] == [SET] and (word == "=" or joined[-1].endswith("=")):
            cut = joined[-1].partition("=")[0] + "="
            joined[-1] += word
        else:
            joined.append(word)
            cut = ""
    return joined, cut


class SetBashComplete(BashComplete):
    """Click's completion for Bash, with ``--set KEY=VALUE``."""

    source_template = BashComplete.source_template.replace(SPACE, NO_SPACE)

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the one to complete, and what is there of it."""
        words = split_arg_string(os.environ["COMP_WORDS"])
        last = int(os.environ["COMP_CWORD"])
        joined, self._cut = join_assignments([*words[1:last], words[last] if last < len(words) else ""])
        return joined[:-1], joined[-1]

    def format_completion(self, item: CompletionItem) -> str:
        """Return an answer, for Bash without what it has cut off."""
        return f"{item.type},{item.value.removeprefix(self._cut)}"
