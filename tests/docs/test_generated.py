"""Nothing is missing from the generated pages; ``make docs-check`` has that they are up to date."""

import doctest
import importlib
import io
import re
import shutil
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path

import click
import numpy as np
import pytest
from PIL import Image

from ptq_cli.cli.main import COMMANDS, cli
from ptq_cli.core import errors
from ptq_cli.core.errors import PtqError
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections import OverrideSettings
from ptq_cli.terminal.options.help_sections import GLOBAL
from tests.each_case import each_case
from tests.pinned import with_pinned_writers
from tests.torch_needed import HAS_TORCH
from tools.draw_report import save

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CODES = [
    kind.code
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, PtqError) and kind is not PtqError
]

WITH_EXAMPLES = (
    *("tools.tables", "tools.marked", "benchmarks.zoo_metrics", "benchmarks.zoo", "benchmarks.portable"),
    *("tools.pages.page_blocks", "tools.pages.page_commands", "tools.pages.page_faults", "tools.pages.shown"),
)


def generate(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tools.generate_docs", *arguments],
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
    )


def sections(page: str) -> dict[str, str]:
    parts = re.split(r"^## (.+)$", (DOCS / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.nightly
@with_pinned_writers
def test_an_outdated_page_is_named_with_what_differs(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    shutil.copytree(ROOT / "tools", tmp_path / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(DOCS, tmp_path / "docs")
    page = tmp_path / "docs" / "commands.md"
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace("## ptq gate", "## ptq grate"), encoding="utf-8")
    (tmp_path / "docs" / "errors.md").unlink()
    result = generate(tmp_path, "--check")
    assert result.returncode == 1
    assert "docs/commands.md is out of date:\n-## ptq grate\n+## ptq gate\n" in result.stderr
    assert "docs/errors.md is out of date" in result.stderr and "more lines" in result.stderr
    assert "recipe.md" not in result.stderr
    assert generate(tmp_path).returncode == 0
    assert page.read_text(encoding="utf-8") == text
    assert generate(tmp_path, "--check").returncode == 0


@each_case("name", COMMANDS)
def test_every_command_and_option_is_described(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    section = sections("commands.md")[f"ptq {name}"]
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name
            assert f"`{parameter.opts[0]}`" in section or getattr(parameter, "section", "") == GLOBAL
        else:
            assert str(parameter.name).upper() in section
    assert "```bash\nptq " in section, "every command shows an example"


def test_every_exit_status_is_described() -> None:
    section = sections("commands.md")["Exit status"]
    assert re.findall(r"^\| (\d+) \|", section, re.MULTILINE) == ["0", "1", "2", "3", "130", "143"]


def test_every_error_code_is_described() -> None:
    found = sections("errors.md")
    assert len(CODES) > 20 and sorted(found) == sorted(CODES)
    for text in found.values():
        assert "**Remedy.** " in text


@each_case("section", [item.name for item in fields(Recipe) if is_dataclass(item.type)])
def test_every_setting_is_described(section: str) -> None:
    text = sections("recipe.md")[section]
    settings = [item.name for item in fields(getattr(Recipe(), section))]
    assert re.findall(r"^- `(\w+)` \(.+?\): .+$", text, re.MULTILINE) == settings


def test_every_setting_of_an_override_is_described() -> None:
    rows = re.findall(r"^- `(\w+)` \(", sections("recipe.md")["[[override]]"], re.MULTILINE)
    assert rows == [item.name for item in fields(OverrideSettings)]


def test_a_screenshot_keeps_its_grounds_apart_and_its_few_colored_pixels(tmp_path: Path) -> None:
    rows = 256
    grays = np.repeat(np.arange(rows, dtype=np.uint8), 40).reshape(rows, 40)
    pixels = np.stack([grays, grays, np.maximum(grays, 1) - 1], axis=2)
    pixels[:20], pixels[20:40] = (255, 255, 255), (247, 247, 245)
    pixels[100, :5], pixels[120, :5] = (213, 94, 0), (0, 158, 115)
    shot = io.BytesIO()
    Image.fromarray(pixels).save(shot, "png")
    save(shot.getvalue(), tmp_path / "shot.png")
    shown = Image.open(tmp_path / "shot.png")
    assert shown.mode == "P" and shown.size == (40, rows)
    found = np.asarray(shown.convert("RGB"))
    for row in (0, 20, 100, 120):
        assert (found[row, 0] == pixels[row, 0]).all()


@pytest.mark.skipif(not HAS_TORCH, reason="some draw quantizers, in PyTorch")
@each_case("module", WITH_EXAMPLES)
def test_examples_of_the_tools(module: str) -> None:
    done = doctest.testmod(importlib.import_module(module))
    assert done.attempted and not done.failed
