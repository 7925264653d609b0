"""GitHub's page of a build: what a command found stands there, too."""

import os
from pathlib import Path

from ptq_cli.cli.shown.output import tell

VARIABLE = "GITHUB_STEP_SUMMARY"
"""Names the file of the page; GitHub sets it for each step of a job."""


def add_to_step_summary(markdown: str) -> None:
    """Append Markdown to the page of the build, where there is one.

    A page that cannot be written is told on stderr, and is no reason to change the verdict.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return
    try:
        with Path(path).open("a", encoding="utf-8") as page:
            page.write(f"{markdown.rstrip()}\n\n")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        tell(f"warning: the step summary '{path}', which {VARIABLE} names, cannot be written: {reason}")
