"""Run the guides, and write what their commands print into them again.

python -m tools.guides.write_sessions [NAME ...]

Only outputs that a page shows are written; where a page leaves out lines with an ellipsis, those that it shows are.
"""

import os
import subprocess
import sys
import tempfile
from itertools import groupby
from pathlib import Path

from tools.guides.run_page import Ran, run_page
from tools.guides.shown import refreshed

PAGES = Path(__file__).parents[2] / "docs" / "guides"


def main() -> None:
    """Write all guides, or those that are named."""
    names = sys.argv[1:] or sorted(path.stem for path in PAGES.glob("*.md"))
    for name in names:
        page = PAGES / f"{name}.md"
        with tempfile.TemporaryDirectory() as place:
            ran = run_page(page, Path(place), call)
        page.write_text(rewritten(page.read_text(encoding="utf-8"), ran), encoding="utf-8")
        print(f"wrote {page.name}")


def call(command: str, folder: Path) -> tuple[int, str]:
    """Run a command in bash on a terminal of 80 columns."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path, "COLUMNS": "80"},
        check=False,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    return done.returncode, done.stdout


def rewritten(text: str, ran: list[Ran]) -> str:
    """Return a page with the outputs of its sessions replaced.

    Raises:
        RuntimeError: a command ended otherwise than the page says.
    """
    lines = text.splitlines()
    shifted = 0
    for start, group in groupby(ran, key=lambda item: item.block.line):
        members = list(group)
        for item in members:
            if item.status != item.step.status:
                printed = "\n".join(item.printed)
                raise RuntimeError(f"line {start}: {item.step.command} ended with {item.status}\n{printed}")
        if members[0].block.language != "console":
            continue
        old = members[0].block.text.splitlines()
        new = _session(old, members)
        first = start - 1 + shifted
        lines[first : first + len(old)] = new
        shifted += len(new) - len(old)
    return "\n".join(lines) + "\n"


def _session(old: list[str], ran: list[Ran]) -> list[str]:
    """Return a session with the outputs that it shows replaced; commands stay as they are broken into lines."""
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
