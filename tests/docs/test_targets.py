"""docs/targets.md has every target and every key of a table, and its tables are read."""

import re
import subprocess
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from ptq_cli.plan.target.target_file import load_target, target_names
from tests.each_case import each_case
from tools.target_page import SECTIONS

PAGE = (Path(__file__).parents[2] / "docs" / "targets.md").read_text(encoding="utf-8")
EXAMPLE, EXTENDING = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)

MakeSample = Callable[[str], Path]
RunShell = Callable[..., subprocess.CompletedProcess[str]]


def test_every_target_is_on_the_page() -> None:
    assert re.findall(r"^\| `([\w-]+)` \| u?int\d", PAGE, re.MULTILINE) == list(target_names())


@each_case("title, kind", SECTIONS, ids=[title for title, _ in SECTIONS])
def test_every_key_is_described(title: str, kind: type) -> None:
    section = PAGE.partition(f"### {title}\n")[2].partition("\n### ")[0]
    assert re.findall(r"^- `(\w+)` \(", section, re.MULTILINE) == [item.name for item in fields(kind)]


@pytest.mark.parametrize("text", [EXAMPLE, EXTENDING], ids=["from scratch", "extends"])
def test_a_table_of_the_page_is_read(text: str, tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(text, encoding="utf-8")
    target = load_target(str(path))
    assert f'name = "{target.name}"' in text
    assert target.op["Conv"].kind == "compute"


def test_a_recipe_names_a_target_relative_to_its_folder(make_sample: MakeSample, ptq: RunShell) -> None:
    folder = make_sample("spoken_digits_transformer")
    (folder / "targets").mkdir()
    (folder / "targets" / "own.toml").write_text(EXAMPLE, encoding="utf-8")
    recipe = folder / "ptq.toml"
    recipe.write_text(
        f'{recipe.read_text()}\n[quantization]\ntarget = "targets/own.toml"\n', encoding="utf-8"
    )
    result = ptq("ptq inspect model.onnx --json", folder)
    assert '"target": "my-npu"' in result.stdout, result.stdout
