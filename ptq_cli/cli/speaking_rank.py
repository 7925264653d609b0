"""Under ``torchrun`` several processes run the same command: one speaks, and all end together."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ptq_cli.core.errors import RanksError
from ptq_cli.pipeline.calibration.torchrun.ranks import find_ranks

SHARED = ("calibrate",)
"""Commands whose work is shared out among the processes."""


@contextlib.contextmanager
def one_voice(*, debug: bool) -> Iterator[None]:
    """Let the first of several processes speak alone inside the block, and end all of them after it.

    Args:
        debug: leave stderr to all processes.
    """
    try:
        ranks = find_ranks(os.environ)
    except RanksError:  # The command says so, on all ranks, since which of them this is cannot be told.
        ranks = None
    if ranks is None:
        yield
        return
    from ptq_cli.pipeline.calibration.torchrun.talk import part_together

    with contextlib.ExitStack() as stack:
        stack.callback(part_together, ranks)
        if not ranks.is_first:
            nowhere = stack.enter_context(Path(os.devnull).open("w"))
            stack.enter_context(contextlib.redirect_stdout(nowhere))
            if not debug:
                stack.enter_context(contextlib.redirect_stderr(nowhere))
        yield
