"""GitHub's job summary: the result of a command is added to it."""

import os
from pathlib import Path

from ptq_cli.cli.shown.terminal.output import warn

VARIABLE = "GITHUB_STEP_SUMMARY"
"""Environment variable with the summary's file; GitHub sets it for each step of a job."""


def add_to_step_summary(markdown: str) -> None:
    """Append Markdown to the job summary, if there is one.

    If it cannot be written, a warning on stderr says so; the verdict does not change.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return
    try:
        with Path(path).open("a", encoding="utf-8") as page:
            page.write(f"{markdown.rstrip()}\n\n")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        warn(f"cannot write the step summary '{path}' (set by {VARIABLE}): {reason}")
