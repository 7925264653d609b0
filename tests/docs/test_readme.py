"""What README.md says is what happens: its commands run on small copies of the samples."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from ptq_cli.pipeline.run.resolve import Request, resolve

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"<!-- test: ([^>]+) -->\n(?:<!-- \w+:begin -->\n)?```(\w+)\n(.*?)\n```", re.DOTALL)
SHORTER = ("--seconds 2", "--seconds 0.2")
"""What is measured needs no certainty here."""
WITHOUT_RECIPE = " without ptq.toml"

MakeSample = Callable[[str], Path]
RunShell = Callable[..., subprocess.CompletedProcess[str]]


class Block(NamedTuple):
    sample: str
    has_recipe: bool
    language: str
    text: str


def find_blocks() -> list[Block]:
    blocks: list[Block] = []
    for what, language, text in BLOCK.findall(README):
        if what == "continued":
            blocks[-1] = blocks[-1]._replace(text=f"{blocks[-1].text}\n{text}")
        else:
            sample = what.removesuffix(WITHOUT_RECIPE)
            blocks.append(Block(sample, sample == what, language, text))
    return blocks


BLOCKS = find_blocks()


def test_the_readme_has_a_block_of_each_kind() -> None:
    assert {block.language for block in BLOCKS} == {"console", "toml", "python", "bash"}
    assert README.count("<!-- test:") == len(BLOCK.findall(README))


@pytest.mark.parametrize("block", BLOCKS, ids=[f"{b.language}-{i}" for i, b in enumerate(BLOCKS)])
def test_what_the_readme_says_runs(
    block: Block, make_sample: MakeSample, ptq: RunShell, shell: RunShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_sample(block.sample)
    if not block.has_recipe:
        (folder / "ptq.toml").unlink()
    if block.language == "toml":
        require_equal_recipe(block.text, folder)
    if block.language == "python":
        monkeypatch.chdir(folder)
        exec(compile(block.text, "README.md", "exec"), {})
    printed: list[str] = []
    for command in commands(block):
        result = (ptq if block.language == "console" else shell)(command.replace(*SHORTER), folder)
        printed += result.stdout.splitlines()
        # On so few samples a limit may be missed by chance.
        allowed = (0, 3) if "max-drop" in command else (0,)
        assert result.returncode in allowed, f"{command}\n{result.stdout}"
    if block.language == "console":
        missing = shown_lines(block.text) - {masked(line) for line in printed}
        assert not missing, "run: python -m tools.sample_table"


def require_equal_recipe(text: str, folder: Path) -> None:
    """The recipe in the README says what the flags above it say, and names files that are there."""
    (folder / "ptq.toml").write_text(text, encoding="utf-8")
    recipe = resolve(Request(settings={}, folder=folder)).recipe
    assert recipe.model.path and recipe.calibration.data and recipe.evaluation.data
    assert all(Path(path).is_file() for path in (recipe.model.path, recipe.calibration.data))
    (folder / "ptq.toml").unlink()
    flags = {"arch": "model.py:build", "data": "calib.npz", "eval_data": "eval.npz", "metric": ["top1"]}
    request = Request(settings={**flags, "max_drop": {"top1": 0.01}}, model=Path("model.pt"), folder=folder)
    assert recipe == resolve(request).recipe


def commands(block: Block) -> list[str]:
    if block.language == "console":
        lines = [line.removeprefix("$ ") for line in block.text.splitlines() if line.startswith("$ ")]
        return [line for line in lines if line != "echo $?"]
    return {"toml": [], "python": [], "bash": [block.text]}[block.language]


def shown_lines(text: str) -> set[str]:
    """Return the lines of output that figures, and the luck of few samples, do not change."""
    lines = [line for line in text.splitlines() if not line.startswith("$ ") and not line.isdigit()]
    # The cell that names the worst channel takes a second line if an interval of few samples is wider; how
    # fast a model is, another machine says in other words.
    changing = re.compile(r"\b(pass|fail)\b|worst_channel|times as fast", re.IGNORECASE)
    return {masked(line) for line in lines if not changing.search(line)}


def masked(line: str) -> str:
    line = re.sub(r"-?\d[\d.,]*(e-?\d+)?", "#", line)
    return " ".join(re.sub(r"─+|\b[kM]B\b", "~", line).split())


def test_every_make_target_that_is_named_exists() -> None:
    root = Path(__file__).parents[2]
    targets = set(re.findall(r"^([\w-]+):", (root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for name in ("README.md", "CONTRIBUTING.md", "docs/ARCHITECTURE.md"):
        text = (root / name).read_text(encoding="utf-8")
        named = set(re.findall(r"^make ([\w-]+)", text, re.MULTILINE)) | set(
            re.findall(r"`make ([\w-]+)`", text)
        )
        assert named <= targets, name
    assert {"demo", "test"} <= targets


def test_each_measured_part_names_its_command() -> None:
    root = Path(__file__).parents[2]
    parts = re.findall(r"<!-- (\w+):begin -->\n(.*?)\n<!-- \1:end -->\n\n([^\n]*)", README, re.DOTALL)
    assert [name for name, _, _ in parts] == ["session", "samples"]
    for name, content, after in parts:
        module = re.search(r"`python -m ([\w.]+)`", after)
        assert content and module, name
        assert (root / f"{module[1].replace('.', '/')}.py").is_file()
