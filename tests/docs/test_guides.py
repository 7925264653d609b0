"""What docs/guides says is what happens: each command and each block of code runs, or says why not."""

import ast
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from ptq_cli.cli.main import cli
from tools.guides.page_blocks import blocks, is_ptq, steps
from tools.guides.run_page import run_page
from tools.guides.shown import missing

ROOT = Path(__file__).parents[2]
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
PAGES = sorted(
    [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "sample_models").glob("*/README.md")]
)
COMMAND = re.compile(r"^(?:\$ )?(?:\w+=\S+ )*(?:ptq|torchrun .* -m ptq_cli --) ([a-z].*)$")

ACTION_INPUTS = set(yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))["inputs"])

LONG = {"accuracy", "choosing", "ci", "dataloader", "language-model"}
"""Guides that take 5 to 10 seconds each: `make test-nightly` runs them; `make test` checks their options."""

RunShell = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize(
    "page",
    [pytest.param(path, marks=[pytest.mark.nightly] if path.stem in LONG else []) for path in GUIDES],
    ids=lambda path: path.stem,
)
def test_what_a_guide_says_runs(page: Path, tmp_path: Path, ptq: RunShell, shell: RunShell) -> None:
    def call(command: str, folder: Path) -> tuple[int, str]:
        done = (ptq if is_ptq(command) else shell)(command, folder, COLUMNS="80")
        return done.returncode, done.stdout

    for ran in run_page(page, tmp_path, call):
        place = f"{page.name}, line {ran.block.line}: {ran.step.command}"
        assert ran.status == ran.step.status, "\n".join([place, *ran.printed])
        lost = missing(ran.step.shown, ran.printed)
        assert not lost, f"{place}\n{lost}\nrun: python -m tools.guides.write_sessions {page.stem}"


@pytest.mark.parametrize("page", GUIDES, ids=lambda path: path.stem)
def test_what_does_not_run_is_correct_otherwise(page: Path) -> None:
    for block in blocks(page.read_text(encoding="utf-8")):
        if not block.not_run:
            continue
        if block.language == "python":
            ast.parse(block.text)
        elif block.language == "yaml":
            assert names_of_inputs(yaml.safe_load(block.text)) <= ACTION_INPUTS
        else:
            assert steps(block), f"{page.name}, line {block.line}"
            for step in steps(block):
                subprocess.run(["bash", "-n", "-c", step.command], check=True)


def names_of_inputs(workflow: dict[str, Any]) -> set[str]:
    """Return what a workflow of GitHub gives to the action of this repository."""
    listed = [step for job in workflow.get("jobs", {}).values() for step in job["steps"]]
    return {name for step in listed if step.get("uses") == "./ptq" for name in step["with"]}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_command_of_a_page_has_options_that_exist(page: Path) -> None:
    for line in commands_of(page.read_text(encoding="utf-8")):
        require_options(line)


def commands_of(text: str) -> list[str]:
    """Return the commands that call ptq: in blocks of code, and those indented by four spaces."""
    joined = re.sub(r"\\\n\s*", "", text)
    fenced = "\n".join(
        re.findall(r"^ *```(?:console|bash|text)\n(.*?)^ *```$", joined, re.DOTALL | re.MULTILINE)
    )
    indented = "\n".join(re.findall(r"^    (.*)$", joined, re.MULTILINE))
    lines = [*fenced.splitlines(), *indented.splitlines()]
    found = [match[1] for line in lines if (match := COMMAND.match(line.strip()))]
    return [re.split(r" \|\|? | && | ?; | > | # ", re.sub(r"\s{2,}.*", "", line))[0] for line in found]


def require_options(line: str) -> None:
    """Let click parse a command without running it; usage such as ``[OPTIONS]`` is none."""
    words = shlex.split(line)
    if "[OPTIONS]" in words or "…" in words or words[0] == "COMMAND":
        return
    command: click.Command | None = cli
    context = click.Context(cli, info_name="ptq")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, *words = words
        found = command.get_command(context, name)
        assert found is not None, line
        command, context = found, click.Context(found, context, info_name=name)
    assert command is not None
    try:
        command.make_parser(context).parse_args(list(words))
    except click.UsageError as error:
        raise AssertionError(f"{line}: {error.message}") from error
