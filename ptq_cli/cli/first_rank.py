"""Under ``torchrun`` several processes run the same command: only one prints, and all end together."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ptq_cli.core.errors import RanksError
from ptq_cli.setup.ranks import find_ranks

SHARED = ("calibrate", "evaluate", "tune")
"""Commands whose work is divided among the processes."""


@contextlib.contextmanager
def only_first_rank_prints(*, debug: bool) -> Iterator[None]:
    """Let only the first of several processes print inside the block, and end all of them after it.

    ``debug`` lets all of them write to stderr.
    """
    try:
        ranks = find_ranks(os.environ)
    except RanksError:  # The command reports it, on all ranks, because this process cannot tell its rank.
        ranks = None
    if ranks is None:
        yield
        return
    from ptq_cli.setup.rank_messages import part_together

    with contextlib.ExitStack() as stack:
        stack.callback(part_together, ranks)
        if not ranks.is_first:
            nowhere = stack.enter_context(Path(os.devnull).open("w"))
            stack.enter_context(contextlib.redirect_stdout(nowhere))
            if not debug:
                stack.enter_context(contextlib.redirect_stderr(nowhere))
        yield
