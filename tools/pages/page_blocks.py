"""The blocks of code of a page, with what comments in front of them say.

A comment stands in front of the block that it is about:

``<!-- folder: ocr -->``
    This block and those after it run in a new copy of the folder that ``tools.pages.folders`` makes. Blocks
    of Python that share a folder share their names, too.
``<!-- before: ptq calibrate model.onnx --data calib.npz -->``
    This command, which the page does not show, runs first. There may be several of these.
``<!-- file: own.py -->``
    The block is the content of this file.
``<!-- not run: it needs two machines -->``
    The block is only checked: its syntax, and that the options of ``ptq`` exist.

In Python, a comment behind an expression is its value: ``round(0.7)  # 1``. In a session, ``$ echo $?`` shows
the exit status of the command before it, and a line ``…`` stands for lines that the page leaves out.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

COMMENT = re.compile(r"<!-- (folder|before|file|not run): (.+) -->")
FENCE = re.compile(r"( *)```(\w*)$")
SHELL = re.compile(r"[|&;<>$`*?\n]|^(for|if|while) ")  # What only a shell understands


@dataclass(frozen=True, kw_only=True)
class PageBlock:
    """A block of code.

    Attributes:
        folder: the prepared folder that it runs in; empty without one.
        run: which folder of the page that is, counted from 0: blocks of the same run share a folder.
        before: commands that run before it.
        file: the file whose content it is, if any.
        not_run: why it does not run, if it does not.
        line: where its text begins, counted from 1.
    """

    language: str
    text: str
    folder: str
    run: int
    before: tuple[str, ...] = ()
    file: str | None = None
    not_run: str | None = None
    line: int


@dataclass(frozen=True)
class Step:
    """A command, and the lines that the page shows of what it prints."""

    command: str
    shown: tuple[str, ...] = ()
    status: int = 0


def blocks(page: str) -> list[PageBlock]:
    r"""Return the blocks of a page in their order.

    Example:
        >>> page = "<!-- folder: ocr -->\n<!-- file: a.py -->\n```python\nx = 1\n```\n"
        >>> [(block.folder, block.file, block.text) for block in blocks(page)]
        [('ocr', 'a.py', 'x = 1')]
    """
    found: list[PageBlock] = []
    now = PageBlock(language="", text="", folder="", run=-1, line=0)
    lines = enumerate(page.splitlines(), start=1)
    for number, line in lines:
        comment, fence = COMMENT.fullmatch(line.strip()), FENCE.fullmatch(line)
        if comment:
            now = _said(now, comment[1], comment[2])
        elif fence:
            start, text = _rest(lines, fence[1])
            found.append(replace(now, language=fence[2], text=text, line=start))
            now = replace(now, before=(), file=None, not_run=None)
        elif line.lstrip().startswith(("```", "~~~")):
            raise ValueError(f"line {number}: write ``` and the language, and nothing else")
    return found


def _said(now: PageBlock, kind: str, value: str) -> PageBlock:
    """Return what holds for the next block behind a comment."""
    if kind == "folder":
        return replace(now, folder=value, run=now.run + 1)
    if kind == "before":
        return replace(now, before=(*now.before, value))
    return replace(now, file=value) if kind == "file" else replace(now, not_run=value)


def _rest(lines: Iterator[tuple[int, str]], indent: str) -> tuple[int, str]:
    taken: list[str] = []
    start = 0
    for number, line in lines:
        start = start or number
        if line == f"{indent}```":
            break
        taken.append(line.removeprefix(indent))
    return start, "\n".join(taken)


def steps(block: PageBlock) -> list[Step]:
    r"""Return the commands of a block: of a console those behind a ``$``, of bash each line or the whole.

    What a shell runs as a whole ends where one of its commands fails.

    Example:
        >>> text = "$ ptq gate a.json --min sqnr_db=90\nFAIL\n$ echo $?\n3"
        >>> steps(PageBlock(language="console", text=text, folder="", run=0, line=1))
        [Step(command='ptq gate a.json --min sqnr_db=90', shown=('FAIL',), status=3)]
    """
    if block.language == "console":
        return _of_console(block.text)
    if block.language != "bash":
        return []
    lines = [line for line in _joined(block.text).splitlines() if line and not line.startswith("#")]
    if all(line.startswith("ptq ") for line in lines):
        # A step that fails ends the block anyway.
        return [Step(re.sub(r"\s+# .*", "", line).removesuffix(" || exit $?")) for line in lines]
    return [Step(f"set -e\n{block.text}")]


def is_ptq(command: str) -> bool:
    """Tell whether a command is a call of ``ptq`` that needs no shell.

    Example:
        >>> is_ptq("ptq evaluate --metric 'top1[aux]'"), is_ptq("ptq verify | head")
        (True, False)
    """
    return command.startswith("ptq ") and not SHELL.search(re.sub(r"'[^']*'", "", command))


def _of_console(text: str) -> list[Step]:
    found: list[Step] = []
    for line in _joined(text).splitlines():
        if line == "$ echo $?":
            found.append(Step("echo $?"))
        elif line.startswith("$ "):
            found.append(Step(line.removeprefix("$ ")))
        elif found and found[-1].command == "echo $?":
            found.pop()
            found[-1] = replace(found[-1], status=int(line))
        elif found:
            found[-1] = replace(found[-1], shown=(*found[-1].shown, line))
    return found


def _joined(text: str) -> str:
    return re.sub(r"\\\n\s*", "", text)
