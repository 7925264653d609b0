"""``ptq quantizers``: the list, the drawings, and what is refused."""

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ptq_cli.recipe.quantizer_families import FAMILIES
from tests.each_case import each_case, table

pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_list_has_every_family_and_parameter(ptq: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "600")
    outcome = ptq("quantizers")

    assert outcome.status == 0 and outcome.err == ""
    for family in FAMILIES.values():
        (row,) = [line for line in outcome.out.splitlines() if line.strip().startswith(f"{family.name} ")]
        assert family.meaning in row and family.source in row
        for parameter in (*family.weight_parameters, *(family.activation_parameters or ())):
            assert f"{parameter.name} " in row and f"({parameter.wanted})" in row


def test_the_list_as_json(ptq: Any) -> None:
    found = json.loads(ptq("quantizers --json").out)["quantizers"]

    assert [item["name"] for item in found] == list(FAMILIES)
    assert found[0]["weights"][0] == {"name": "bits", "default": 8, "wanted": "2 to 8"}
    names = ["bits", "granularity", "block_size", "axis", "dtype", "symmetric"]
    assert [setting["name"] for setting in found[0]["weights"]] == names
    assert [item["name"] for item in found if item["activations"] is None] == ["dorefa", "centers"]


@pytest.mark.parametrize(
    ("words", "without"),
    [
        (["quantizers"], ["torch", "onnx", "onnxruntime", "numba"]),
        (["quantizers", "show", "scaled"], ["onnx", "onnxruntime", "numba"]),
    ],
    ids=" ".join,
)
def test_nothing_is_loaded_that_is_not_needed(words: list[str], without: list[str]) -> None:
    code = f"import sys; from ptq_cli.cli.main import run; run({words}); \
print(sorted(set({without}) & set(sys.modules)), file=sys.stderr)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)
    assert result.stderr.splitlines()[-1] == "[]"


def test_a_terminal_without_the_characters_gets_plain_ones() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "80"}
    words = [sys.executable, "-m", "ptq_cli", "quantizers", "show", "scaled", "--bits", "3"]
    result = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)

    assert result.stdout.isascii()
    for characters in ("+--", "|", ".."):
        assert characters in result.stdout
    assert "?" not in result.stdout


def test_plots_are_files_of_their_kind(ptq: Any, tmp_path: Path) -> None:
    outcome = ptq("quantizers show centers --centers 5 --plot c.svg")
    assert outcome.status == 0 and outcome.out.splitlines()[-1] == "wrote c.svg"
    first = (tmp_path / "c.svg").read_bytes()
    assert ET.fromstring(first).tag.endswith("svg")
    assert json.loads(ptq("quantizers show centers --centers 5 --plot c.svg --json").out)["plot"] == "c.svg"
    assert (tmp_path / "c.svg").read_bytes() == first, "the same numbers, the same bytes"

    assert ptq("quantizers show step --plot s.png").status == 0
    with Image.open(tmp_path / "s.png") as image:
        assert np.asarray(image.convert("RGB")).std() > 10


REFUSED = table("""
    show scald | PTQ-RECIPE-004 | (did you mean 'scaled'?) | known: scaled, fixed_point
    show step --bits 3 | PTQ-RECIPE-002 | not a parameter of | drawn with: step
    show scaled --bits 17 | PTQ-RECIPE-003 | expects 2 to 16 | show --help
    --json show step | PTQ-USAGE-001 | --json comes after | show FAMILY --json
    show step --plot x.pdf | PTQ-USAGE-001 | got 'x.pdf' | --plot
    show step --plot no/x.png/x.png | PTQ-FILE-002 | cannot write | ~
""")


@each_case("words, code, says, hint", REFUSED)
def test_what_is_refused(ptq: Any, tmp_path: Path, words: str, code: str, says: str, hint: str) -> None:
    Path("no").write_text("a file")
    outcome = ptq(f"quantizers {words}")

    assert outcome.status == 2 and outcome.out == ""
    first, *rest = outcome.err.splitlines()
    assert first.startswith(f"error {code}: ") and says in first
    assert not hint or hint in rest[0]


@pytest.mark.usefixtures("without_matplotlib")
def test_without_matplotlib_it_says_how_to_get_it(ptq: Any) -> None:
    outcome = ptq("quantizers show step --plot x.png")
    assert outcome.status == 2 and "pip install 'ptq-cli[plot]'" in outcome.err


def test_a_drawing_says_what_it_is_of(ptq: Any) -> None:
    lines = ptq("quantizers show scaled --bits 4").out.splitlines()
    assert lines[0] == f"scaled: {FAMILIES['scaled'].meaning}"
    assert lines[1] == "bits 4, amax 1, unsigned no, narrow_range yes; 15 levels"
