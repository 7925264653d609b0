"""Schemas, and the pages that list something, are whole."""

import json
import re
import tomllib
from pathlib import Path

import jsonschema

import ptq_cli
from tests.each_case import each_case

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DECISIONS = sorted((DOCS / "decisions").glob("0*.md"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@each_case("path", sorted(DOCS.glob("*.json")), ids=lambda path: path.name)
def test_every_schema_is_a_schema(path: Path) -> None:
    schema = json.loads(path.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)


def test_every_dependency_has_its_line() -> None:
    text = (DOCS / "DEPENDENCIES.md").read_text(encoding="utf-8")
    runtime, development = text.split("## For development")
    for part, wanted in (
        (runtime, PROJECT["dependencies"]),
        (development, PROJECT["optional-dependencies"]["dev"]),
    ):
        names = [re.split(r"[<>=!~\[ ]", requirement)[0] for requirement in wanted]
        assert re.findall(r"^\| `([\w-]+)` \|", part, re.MULTILINE) == sorted(set(names))


@each_case("path", DECISIONS, ids=lambda path: path.stem)
def test_a_decision_is_short_and_whole(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 40
    assert lines[0].startswith(f"# {path.name[:4]}: ")
    assert [line for line in lines if line.startswith("## ")] == [
        "## Context",
        "## Decision",
        "## Consequences",
    ]
    assert f"]({path.name})" in (DOCS / "decisions" / "README.md").read_text(encoding="utf-8")


def test_the_changelog_has_this_version() -> None:
    assert f"## {ptq_cli.__version__} " in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
