"""A public constant or class has one meaning: no two modules of the package define the same name."""

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "ptq_cli"
# It travels to devices where ptq is not installed, and so repeats what it needs; the other is generated.
ALONE = {PACKAGE / "devices" / "run.py", PACKAGE / "recipe" / "keyword_settings.py"}


def public_names(source: str) -> set[str]:
    """Classes and constants of a module's first level that do not begin with an underscore."""
    found: set[str] = set()
    for node in ast.parse(source).body:
        match node:
            case ast.ClassDef(name=name):
                found.add(name)
            case ast.Assign(targets=targets):
                found |= {
                    part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)
                }
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
    return {name for name in found if not name.startswith("_")}


def test_names_of_a_module_are_found():
    source = "A, B = 1, 2\nC: int = 3\n_D = 4\nclass E: F = 5\nfor G in (): pass"
    assert public_names(source) == {"A", "B", "C", "E"}


def test_no_name_has_two_meanings():
    places = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        if path not in ALONE:
            for name in public_names(path.read_text()):
                places[name].append(str(path.relative_to(PACKAGE)))
    assert len(places) > 500
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
