"""What is wrong with the blocks of a page before any of them runs."""

import ast
import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator

from tools.pages.folders import folder_names
from tools.pages.page_blocks import COMMENT, PageBlock, blocks, steps

PROGRAMS = r"(?:ptq|python3?|pip|torchrun|make|git|cd|uv)"
INDENTED = re.compile(rf"^ {{4,}}(?:\$ )?{PROGRAMS} ")
SAID = re.compile(r"<!-- [a-z ]+: .* -->")
# What a reader would type; a line of usage is not that.
TYPED = re.compile(rf"^(?:\$ )?{PROGRAMS} (?!.*(?:\[OPTIONS\]|\[ARGS\]|…))")


def faults(page: str) -> Iterator[str]:
    r"""Yield what is wrong with a page's blocks; nothing is run.

    Example:
        >>> list(faults("```bash\nptq quantize model.onnx\n```\n"))
        ['line 2: neither a folder to run in, nor a reason not to run']
    """
    try:
        found = blocks(page)
    except ValueError as error:
        yield str(error)
        return
    inside = {
        line for block in found for line in range(block.line, block.line + len(block.text.splitlines()))
    }
    for number, line in enumerate(page.splitlines(), start=1):
        if number not in inside and INDENTED.match(line):
            yield f"line {number}: put the command between fences"
        if SAID.fullmatch(line) and not COMMENT.fullmatch(line):
            yield f"line {number}: no comment is called so: {line}"
    for block in found:
        fault = _fault(block)
        if fault:
            yield f"line {block.line}: {fault}"


def _fault(block: PageBlock) -> str | None:
    """Return what is wrong with a block."""
    fault = None
    if not block.language:
        fault = "no language; 'text' is for what is neither code nor commands"
    elif block.language == "text":
        typed = [line for line in block.text.splitlines() if TYPED.match(line)]
        fault = f"commands belong into 'console' or 'bash': {typed[0]}" if typed else None
    elif block.folder and block.folder not in folder_names():
        fault = f"no folder is called '{block.folder}'"
    elif block.not_run:
        fault = _syntax_fault(block)
    elif not block.folder:
        fault = "neither a folder to run in, nor a reason not to run"
    elif not (block.file or block.language == "python" or steps(block)):
        fault = "nothing to run, and no file to be"
    return fault


def _syntax_fault(block: PageBlock) -> str | None:
    """Return what is wrong with a block that does not run, as the language that it is in."""
    try:
        if block.language == "python":
            ast.parse(block.text)
        elif block.language == "json":
            json.loads(block.text)
        elif block.language == "toml":
            tomllib.loads(block.text)
        elif block.language != "yaml":
            return _shell_fault(block)
    except (SyntaxError, ValueError) as error:
        return str(error)
    return None


def _shell_fault(block: PageBlock) -> str | None:
    if not steps(block):
        return f"'{block.language}' is neither code nor commands"
    for step in steps(block):
        command = [shutil.which("bash") or "bash", "-n", "-c", step.command]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            return done.stderr.strip()
    return None
