"""Every link between the project's pages leads somewhere, and every block of code is code."""

import re
import subprocess
import tomllib
from pathlib import Path

import yaml

from ptq_cli.recipe.schema import decode_recipe
from tests.each_case import each_case

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "benchmarks").glob("*.md"),
        ROOT / "configs" / "README.md",
        *(ROOT / "sample_models").glob("*/README.md"),
    ]
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def page_id(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def prose(path: Path) -> str:
    return FENCE.sub("", path.read_text(encoding="utf-8"))


def anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub gives a page's headings."""
    headings = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {text.replace(" ", "-") for text in words}


@each_case("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        if link.startswith(("http:", "https:")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page_id(page)}: {link}"
        assert target.is_relative_to(ROOT), f"{page_id(page)}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{page_id(page)}: {link}"


@each_case("page", PAGES, ids=page_id)
def test_blocks_of_code_are_code(page: Path) -> None:
    for language, text in FENCE.findall(page.read_text(encoding="utf-8")):
        if language == "python":
            compile(text, page_id(page), "exec")
        elif language == "toml":
            found = tomllib.loads(text)
            # A target's table is read by the test of its page, and a package's by that of plug-ins.
            if not {"description", "project"} & set(found):
                decode_recipe(found, page_id(page))
        elif language == "bash":
            subprocess.run(["bash", "-n", "-c", text], check=True)
        elif language == "yaml":
            assert yaml.safe_load(text)
        else:
            assert language in ("console", "text"), f"{page_id(page)} has a block of {language or 'nothing'}"


@each_case("page", PAGES, ids=page_id)
def test_no_path_of_a_machine_is_shown(page: Path) -> None:
    found = re.search(r"(?<![\w.])/(home|root|tmp|usr|work|Users|var)/", page.read_text(encoding="utf-8"))
    assert found is None, found
