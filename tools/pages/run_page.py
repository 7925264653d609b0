"""Run the blocks of a page in their folders, in the order of the page."""

import ast
import contextlib
import io
import os
import re
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ptq_cli.recipe.schema import decode_recipe
from tools.pages.folders import make
from tools.pages.page_blocks import PageBlock, Step, blocks, steps

# Runs a command in a folder; returns its exit status, and what it printed.
Call = Callable[[str, Path], tuple[int, str]]
# The value of the expression before it.
VALUE = re.compile(r"  # ([\d\[({'\"-].*|True|False|None)$")


@dataclass(frozen=True)
class Ran:
    """A command of a page, and what it printed."""

    block: PageBlock
    step: Step
    status: int
    printed: tuple[str, ...]


def run_page(page: Path, place: Path, call: Call, *, whole: bool = False) -> list[Ran]:
    """Run all blocks of a page, and return the commands that ran."""
    ran: list[Ran] = []
    names: dict[int, dict[str, Any]] = {}
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.not_run or block.language == "text":
            continue
        if not block.folder:
            raise ValueError(f"{page.name}, line {block.line}: no folder, and no reason not to run")
        folder = place / f"{block.run}-{block.folder}"
        if not folder.exists():
            folder.mkdir()
            make(block.folder, folder, whole=whole)
        for command in block.before:
            status, printed = call(command, folder)
            if status:
                raise ValueError(f"{page.name}, line {block.line}: {command}\n{printed}")
        if block.file:
            (folder / block.file).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.file).write_text(f"{block.text}\n", encoding="utf-8")
            require_content(block)
        elif block.language == "python":
            run_python(page, block, folder, names.setdefault(block.run, {"__name__": "__main__"}))
        elif not steps(block):
            raise ValueError(f"{page.name}, line {block.line}: nothing to run, and no file to be")
        for step in () if block.file else steps(block):
            status, printed = call(step.command, folder)
            ran.append(Ran(block, step, status, tuple(printed.splitlines())))
    return ran


def require_content(block: PageBlock) -> None:
    """Read what stands in a file as the format that it is."""
    if block.language == "toml" and str(block.file).endswith("ptq.toml"):
        decode_recipe(tomllib.loads(block.text), str(block.file))
    elif block.language == "toml":
        tomllib.loads(block.text)
    elif block.language == "python":
        compile(block.text, str(block.file), "exec")


def run_python(page: Path, block: PageBlock, folder: Path, names: dict[str, Any]) -> None:
    """Run Python as a script in a folder, whose modules are not those of other folders."""
    before, paths = set(sys.modules), list(sys.path)
    sys.path.insert(0, str(folder))
    lines = block.text.splitlines()
    try:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        quiet = contextlib.redirect_stdout(io.StringIO())
        with contextlib.chdir(folder), quiet, patch.dict(os.environ, PATH=path):
            for statement in ast.parse(block.text).body:
                said = VALUE.search(lines[(statement.end_lineno or 0) - 1])
                ast.increment_lineno(statement, block.line - 1)
                # What a page of this repository says is run as a reader would run it.
                if not isinstance(statement, ast.Expr) or not said:
                    exec(compile(ast.Module([statement], []), page.name, "exec"), names)  # noqa: S102
                    continue
                found = eval(compile(ast.Expression(statement.value), page.name, "eval"), names)  # noqa: S307
                if repr(found) != said[1]:
                    raise ValueError(f"{page.name}, line {statement.lineno}: {found!r} is not {said[1]}")
    finally:
        sys.path[:] = paths
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
                del sys.modules[name]
