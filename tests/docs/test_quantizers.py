"""The page of the quantizers: its names are those of the library, its figures are drawn from it.

``make docs-check`` has that the figures are up to date.
"""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import ptq_cli.quantizers
from tests.each_case import each_case
from tests.pinned import with_pinned_writers
from tools import draw_quantizers

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "quantizers.md").read_text(encoding="utf-8")
PARTS = re.split(r"^## (.+)$", PAGE, flags=re.MULTILINE)
SECTIONS = dict(zip(PARTS[1::2], PARTS[2::2], strict=True))
EXAMPLE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FAMILIES = ["Straight-through primitives", "Scaled", "Fixed point", "DoReFa", "Step", "Centers"]
WHITE = 'style="fill: #ffffff"'


def test_the_page_has_every_public_name_and_no_other() -> None:
    listed = re.findall(r"`(\w+)`", SECTIONS["All names"].split("| --- |")[1])
    assert sorted(listed) == sorted(ptq_cli.quantizers.__all__)


@each_case("family", FAMILIES)
def test_a_family_has_what_one_asks_of_it(family: str) -> None:
    text = SECTIONS[family]
    assert EXAMPLE.search(text) and re.search(r"^!\[.+\]\(figures/\w+\.svg\)$", text, re.MULTILINE)
    for part in ("**Gradient.**", "**Edge cases.**", "**In ONNX.**", "**Source.**"):
        assert part in text or (part == "**Gradient.**" and "| dy/dx |" in text), part


def test_every_figure_is_shown_and_has_a_background() -> None:
    shown = re.findall(r"\(figures/(\w+)\.svg\)", PAGE)
    files = sorted((ROOT / "docs" / "figures").glob("*.svg"))
    assert sorted(shown) == [path.stem for path in files]
    for path in files:
        text = path.read_text(encoding="utf-8")
        assert ET.fromstring(text).tag.endswith("svg") and len(text) < 60_000
        assert text.index(WHITE) < text.index('id="axes_1"'), "on a dark page it would be dark on dark"


@with_pinned_writers
def test_a_figure_that_differs_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: panels for name, panels in draw_quantizers.figures().items() if name in ("step", "centers")}
    monkeypatch.setattr(draw_quantizers, "figures", lambda: few)
    monkeypatch.setattr(draw_quantizers, "FOLDER", tmp_path / "figures")
    assert draw_quantizers.main([]) == 0
    one, other = (folder / "step.svg" for folder in (tmp_path / "figures", ROOT / "docs" / "figures"))
    assert one.read_bytes() == other.read_bytes(), "the same numbers, the same bytes"
    for name in few:
        path = tmp_path / "figures" / f"{name}.svg"
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace("#d55e00", "#d55e01") if name == "step" else text.replace("L 1", "L 2"))
    assert draw_quantizers.main(["--check"]) == 1
    assert draw_quantizers.main([]) == 0 and draw_quantizers.main(["--check"]) == 0
    assert draw_quantizers.main(["--chekc"]) == 2
