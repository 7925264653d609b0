"""What the pages say is what happens: each command and each block of code runs, or says why not."""

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
from tools.pages.page_blocks import blocks, is_ptq
from tools.pages.page_faults import faults
from tools.pages.page_list import NIGHTLY, NOT_YET, ROOT, page_names
from tools.pages.run_page import run_page
from tools.pages.sample_folders import sample_names
from tools.pages.shown import missing

TEXTS = {name: (ROOT / name).read_text(encoding="utf-8") for name in page_names()}
WRITTEN = [name for name in TEXTS if name not in NOT_YET]
COMMAND = re.compile(r"^(?:\$ )?(?:\w+=\S+ )*(?:ptq|torchrun .* -m ptq_cli --) ([a-z].*)$")

ACTION_INPUTS = set(yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))["inputs"])

SHORTER = ("--seconds 2", "--seconds 0.2")
"""What is measured needs no certainty here."""

RunShell = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.nightly] if name in NIGHTLY else [])
        for name in WRITTEN
        if any(not block.not_run and block.language != "text" for block in blocks(TEXTS[name]))
    ],
)
def test_what_a_page_says_runs(name: str, tmp_path: Path, ptq: RunShell, shell: RunShell) -> None:
    def call(command: str, folder: Path) -> tuple[int, str]:
        start = ptq if is_ptq(command) else shell
        done = start(command.replace(*SHORTER), folder, COLUMNS="80", HOME=str(tmp_path))
        return done.returncode, done.stdout

    for ran in run_page(ROOT / name, tmp_path, call):
        place = f"{name}, line {ran.block.line}: {ran.step.command}"
        is_cut = ran.block.folder in sample_names()
        # On few of its samples, a limit may be missed or kept by chance.
        allowed = (0, 3) if is_cut and ran.step.status in (0, 3) else (ran.step.status,)
        assert ran.status in allowed, "\n".join([place, *ran.printed])
        lost = missing(ran.step.shown, ran.printed, is_cut=is_cut)
        assert not lost, f"{place}\n{lost}\nrun: python -m tools.pages.write_sessions {name}"


@pytest.mark.parametrize("name", WRITTEN)
def test_every_block_runs_or_says_why_not(name: str) -> None:
    assert list(faults(TEXTS[name])) == []
    for block in blocks(TEXTS[name]):
        if block.not_run and block.language == "yaml":
            assert names_of_inputs(yaml.safe_load(block.text)) <= ACTION_INPUTS


def test_pages_that_are_not_written_yet_are_pages() -> None:
    assert set(page_names()) >= NOT_YET | NIGHTLY
    for name in NOT_YET:
        assert list(faults(TEXTS[name])), f"take {name} from NOT_YET: it is written"


def names_of_inputs(workflow: dict[str, Any]) -> set[str]:
    """Return what a workflow of GitHub gives to the action of this repository."""
    listed = [step for job in workflow.get("jobs", {}).values() for step in job["steps"]]
    return {name for step in listed if step.get("uses") == "./ptq" for name in step["with"]}


@pytest.mark.parametrize("name", page_names())
def test_every_command_of_a_page_has_options_that_exist(name: str) -> None:
    for line in commands_of(TEXTS[name]):
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
