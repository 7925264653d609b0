"""Run pages, and write what their commands print into them again.

python -m tools.pages.write_sessions [PAGE ...]

Only outputs that a page shows are written; where an ellipsis stands for lines, those that the page shows.
Samples have all of their data here. Tables fit 80 columns, or the width in COLUMNS.
"""

import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
from itertools import groupby
from pathlib import Path

from ptq_cli.cli.main import run
from ptq_cli.core.trust import FOLDER_VARIABLE
from tools.pages.page_blocks import is_ptq
from tools.pages.page_list import ROOT, page_names
from tools.pages.run_page import Ran, run_page
from tools.pages.shown import refreshed


def main() -> None:
    """Write all pages, or those that are named."""
    failed = []
    pages = [Path(name) for name in sys.argv[1:]]
    os.environ.setdefault("COLUMNS", "80")
    for page in pages or [ROOT / name for name in page_names()]:
        with tempfile.TemporaryDirectory() as place:
            os.environ[FOLDER_VARIABLE] = f"{place}/configuration"
            ran = run_page(page, Path(place), call, whole=True)
        text, problems = rewritten(page.read_text(encoding="utf-8"), ran)
        page.write_text(text, encoding="utf-8")
        print(f"wrote {page}")
        failed += [f"{page}, {problem}" for problem in problems]
    if failed:
        sys.exit("\n\n".join(failed))


def call(command: str, folder: Path) -> tuple[int, str]:
    """Run a command as on a terminal of 80 columns: ``ptq`` in this process, which spares its start."""
    if is_ptq(command):
        with (
            tempfile.TemporaryFile("w+", buffering=1, encoding="utf-8") as printed,
            contextlib.chdir(folder),
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
        ):
            status = run(shlex.split(command)[1:])
            printed.seek(0)
            return status, printed.read()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["/bin/bash", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path, "HOME": str(folder)},
        check=False,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    return done.returncode, done.stdout


def rewritten(text: str, ran: list[Ran]) -> tuple[str, list[str]]:
    """Return a page with the outputs of its sessions replaced, and what is wrong with it.

    A block with a command that ended otherwise than the page says, or that did not print what the page shows
    between two ellipses, stays as it is.
    """
    problems: list[str] = []
    lines = text.splitlines()
    shifted = 0
    for start, group in groupby(ran, key=lambda item: item.block.line):
        members = list(group)
        problems += [
            "\n".join([f"line {start}: {item.step.command} ended with {item.status}", *item.printed])
            for item in members
            if item.status != item.step.status
        ]
        if members[0].block.language != "console":
            continue
        old = members[0].block.text.splitlines()
        try:
            new = _session(old, members)
        except ValueError as error:
            problems.append(f"line {start}: {error}")
            continue
        first = start - 1 + shifted
        lines[first : first + len(old)] = new
        shifted += len(new) - len(old)
    return "\n".join(lines) + "\n", problems


def _session(old: list[str], ran: list[Ran]) -> list[str]:
    """Return a session with the outputs that it shows replaced; commands stay broken as they are."""
    new: list[str] = []
    waiting = iter(ran)
    in_command = is_status = False
    for line in old:
        is_status = is_status and not line.startswith("$ ")
        if line.startswith("$ ") or in_command or is_status:
            new.append(line)
        if line == "$ echo $?":
            is_status = True
        elif line.startswith("$ ") or in_command:
            in_command = line.endswith("\\")
            if not in_command:
                item = next(waiting)
                new += refreshed(item.step.shown, item.printed) if item.step.shown else []
    return new


if __name__ == "__main__":
    main()
