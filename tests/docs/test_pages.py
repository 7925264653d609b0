"""What the pages say is what happens: each command and each block of code runs, or says why not."""

import re
import shutil
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from ptq_cli.core.errors import PtqError
from tests.each_case import each_case
from tools.pages.page_blocks import blocks, is_ptq, steps
from tools.pages.page_commands import command_faults
from tools.pages.page_faults import faults
from tools.pages.page_list import BY_DAY, PROGRAMS, ROOT, page_names
from tools.pages.run_page import run_page
from tools.pages.sample_folders import sample_names
from tools.pages.shown import missing

TEXTS = {name: (ROOT / name).read_text(encoding="utf-8") for name in page_names()}
ACTION_INPUTS = set(yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))["inputs"])
MODULE = re.compile(r"python -m\s+((?:benchmarks|tests|tools)\.[\w.]*\w)")

SHORTER = ("--seconds 2", "--seconds 0.2")  # What is measured needs no certainty here

RunShell = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in BY_DAY else [pytest.mark.nightly])
        for name in TEXTS
        if any(not block.not_run and block.language != "text" for block in blocks(TEXTS[name]))
    ],
)
def test_what_a_page_says_runs(name: str, tmp_path: Path, ptq: RunShell, shell: RunShell) -> None:
    if shutil.which(PROGRAMS.get(name, "bash")) is None:
        pytest.skip(f"no {PROGRAMS[name]} here")

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


@each_case("name", TEXTS)
def test_every_block_runs_or_says_why_not(name: str) -> None:
    assert list(faults(TEXTS[name])) == []
    for block in blocks(TEXTS[name]):
        if block.not_run and block.language == "yaml":
            assert names_of_inputs(yaml.safe_load(block.text)) <= ACTION_INPUTS


def names_of_inputs(workflow: dict[str, Any]) -> set[str]:
    """Return what a workflow of GitHub gives to the action of this repository."""
    listed = [step for job in workflow.get("jobs", {}).values() for step in job["steps"]]
    return {name for step in listed if step.get("uses") == "./ptq" for name in step["with"]}


@each_case("name", page_names())
def test_every_command_of_a_page_has_options_that_exist(name: str) -> None:
    assert list(command_faults(TEXTS[name])) == []


def test_every_module_that_a_page_runs_exists() -> None:
    named = [(name, module) for name, text in TEXTS.items() for module in MODULE.findall(text)]
    assert len(named) > 20
    assert [item for item in named if find_spec(item[1]) is None] == []


@each_case(
    "text",
    [
        "Run `ptq quantise`.",
        "Run `ptq quantize … --weigth-bits 4`.",
        "Run `ptq\nexport --weight-bits few`.",
        "`--amx max` is an option.",
        "```bash\nptq inspect model.onnx && ptq verify --min-integer-shar 1\n```",
        "```console\n$ RUN=1 ptq calibrate \\\n    --shart 1/2\n```",
        "```text\ntorchrun --nproc-per-node=4 -m ptq_cli -- calibrat model.onnx\n```",
    ],
)
def test_what_is_misspelt_is_found(text: str) -> None:
    assert list(command_faults(text))


def test_what_is_left_out_is_not_misspelt() -> None:
    text = (
        "`ptq gate`, `ptq export …`, `ptq export --recover`, `ptq merge a … --run all`, `ptq COMMAND --help`"
    )
    assert (
        list(command_faults(f"{text}\n\n```bash\nptq bench a.onnx --batch 8 > times.txt  # two\n```")) == []
    )


@each_case(
    "page",
    [
        "```bash\nptq verify\n```",
        "<!-- folder: nowhere -->\n```bash\nptq verify\n```",
        "<!-- folder: digits -->\n```toml\na = 1\n```",
        "<!-- not run: so -->\n```python\nx = = 1\n```",
        "<!-- not run: so -->\n```bash\nfor i in 1 2; do\n```",
        "<!-- folders: digits -->\n",
        "```text\nptq verify model.onnx\n```",
        "```\nptq verify model.onnx\n```",
        "Type\n\n    ptq verify model.onnx\n",
        "```python title=own.py\nx = 1\n```",
    ],
)
def test_a_block_that_says_too_little_is_found(page: str) -> None:
    assert list(faults(page))


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        ("```python\nx = 1\n```\n\n```python\nx + 1  # 3\n```", "line 7: 2 is not 3"),
        ("<!-- file: ptq.toml -->\n```toml\n[model]\nfile = 'a.onnx'\n```", "file"),
        ("<!-- before: ptq verify model.onnx -->\n```bash\nptq verify\n```", "PTQ-FILE-001"),
        ("```yaml\na: 1\n```", "nothing to run"),
    ],
    ids=["value", "recipe", "before", "no-file"],
)
def test_what_is_not_so_is_noticed(page: str, problem: str, tmp_path: Path, ptq: RunShell) -> None:
    path = tmp_path / "page.md"
    path.write_text(f"<!-- folder: empty -->\n{page}\n", encoding="utf-8")

    def call(command: str, folder: Path) -> tuple[int, str]:
        done = ptq(command, folder)
        return done.returncode, done.stdout

    with pytest.raises((ValueError, PtqError), match=problem):
        run_page(path, tmp_path, call)


def test_a_script_ends_where_a_command_fails(tmp_path: Path, shell: RunShell) -> None:
    page = "<!-- folder: empty -->\n```bash\nfor i in 1 2; do\n    test $i = 2\ndone\n```\n"
    (step,) = steps(blocks(page)[0])
    assert shell(step.command, tmp_path).returncode == 1
