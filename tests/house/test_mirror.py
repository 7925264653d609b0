"""Each unit test lies at the path of its module, or in a folder that has the module's path and name."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "tests" / "unit"


def has_module(test: Path) -> bool:
    """Whether ``a/test_b.py`` has ``a/b.py`` or the room ``a/b``, and ``a/b/test_c.py`` has ``a/b.py``."""
    relative = test.relative_to(UNIT)
    own = relative.with_name(relative.name.removeprefix("test_"))
    places = (ROOT / "ptq_cli", ROOT)  # The package, and tools/… and benchmarks/….
    return any(
        (place / own).is_file()
        or (place / own.with_suffix("") / "__init__.py").is_file()
        or (place / relative.parent).with_suffix(".py").is_file()
        for place in places
    )


def test_unit_tests_lie_at_the_path_of_their_module():
    tests = sorted(UNIT.rglob("test_*.py"))
    assert len(tests) > 100
    assert [str(test.relative_to(UNIT)) for test in tests if not has_module(test)] == []
