"""Pages and docstrings name rooms and files that exist."""

import re
from pathlib import Path

import pytest

from tests.each_case import each_case

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "ptq_cli"
FILES = sorted(PACKAGE.rglob("*.py"))
ROOMS = [path.parent for path in FILES if path.name == "__init__.py" and path.parent != PACKAGE]
TOP_ROOMS = {room.name for room in ROOMS if room.parent == PACKAGE}
COMMANDS = {path.stem for path in (PACKAGE / "cli" / "commands").glob("*.py")}
PAGES = ["docs/ARCHITECTURE.md", "CONTRIBUTING.md"]
MADE_BY_A_RUN = {
    *(
        "ptq-run",
        "ptq.toml",
        "recipe.toml",
        "report.toml",
        "report.json",
        "details.json",
        "devices.json",
        "model_int8.intoto.json",
        "analysis.json",
    ),
    *("tune.json", "drift.json", "drift.html", "folder.json", "profile.json", "tune.partial.json"),
}


def names_in(room: Path) -> set[str]:
    """Return the names of the files and rooms that lie in a room."""
    return {path.stem for path in room.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}


def room_name(room: Path) -> str:
    return room.relative_to(PACKAGE).as_posix()


@each_case("room", ROOMS, ids=room_name)
def test_a_room_names_files_that_it_has(room: Path) -> None:
    text = (room / "__init__.py").read_text(encoding="utf-8")
    known = TOP_ROOMS | COMMANDS | {path.name for path in room.iterdir() if path.is_dir()}
    for place in [room, *room.parents]:
        if place.is_relative_to(PACKAGE):
            known |= names_in(place)
    assert set(re.findall(r"``([a-z]\w*)``", text)) <= known | {"torchrun"}


def test_every_room_is_in_the_architecture() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \|.*\|(.*)\|$",
        (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    written = {room: set(re.findall(r"`(\w+)`", inner)) for room, inner in rows}
    there = {name: {room.name for room in ROOMS if room.parent.name == name} for name in TOP_ROOMS}
    assert written == there


@pytest.mark.parametrize("page", PAGES)
def test_every_path_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    paths = {name.removeprefix("./") for name in re.findall(r"`([\w./<>-]+)`", text) if _is_path(name)}
    missing = [name for name in sorted(paths - MADE_BY_A_RUN) if not _exists(name)]
    assert paths and not missing


def _is_path(name: str) -> bool:
    return "/" in name or re.search(r"\.(py|pyi|md|toml|jinja|json|sh)$", name) is not None


def _exists(name: str) -> bool:
    name = re.sub(r"<\w+>", "*", name)
    return any(next(folder.glob(name), None) is not None for folder in (ROOT, PACKAGE, ROOT / "docs"))
