import sys

import pytest

from ptq_cli.core.entry_points import load_entry_point
from ptq_cli.core.errors import EntryPointError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with code; what it imports is forgotten afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    (tmp_path / "model.py").write_text("SIZE = 3\ndef build():\n    return 'built'\nclass Net: pass\n")
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def load(text, folder):
    return load_entry_point(text, folder, "--arch")


def test_function_of_a_file(folder):
    assert load("model.py:build", folder)() == "built"


def test_module_beside_the_recipe(folder):
    (folder / "beside_recipe.py").write_text("def build(): return 1\n")
    assert load("beside_recipe:build", folder)() == 1


def test_file_imports_its_neighbor(folder):
    (folder / "neighbor_part.py").write_text("VALUE = 7\n")
    (folder / "whole.py").write_text("from neighbor_part import VALUE\ndef build(): return VALUE\n")
    assert load("whole.py:build", folder)() == 7


def test_two_files_of_one_name_stay_apart(folder):
    other = folder / "other"
    other.mkdir()
    (other / "model.py").write_text("def build(): return 'other'\n")
    first, second = load("model.py:build", folder), load("model.py:build", other)
    assert (first(), second()) == ("built", "other")


def test_code_that_rebuilds_the_search_path(folder):
    (folder / "rebuild.py").write_text("import sys\ndel sys.path[0]\ndef build(): return 1\n")
    assert load("rebuild.py:build", folder)() == 1


@pytest.mark.parametrize("text", ["model.py", ":build", "model.py:", "", ":"])
def test_not_of_the_form(folder, text):
    with pytest.raises(EntryPointError, match="is not of the form") as caught:
        load(text, folder)
    assert caught.value.hint == "for example: --arch model.py:build"


def test_missing_file(folder):
    with pytest.raises(EntryPointError, match=r"--arch: the file '.*gone\.py' does not exist"):
        load("gone.py:build", folder)


def test_missing_module(folder):
    with pytest.raises(EntryPointError, match="ModuleNotFoundError: No module named 'no_such_module'"):
        load("no_such_module:build", folder)


def test_missing_name_lists_what_there_is(folder):
    with pytest.raises(EntryPointError, match=r"has no 'biuld' \(did you mean 'build'\?\)") as caught:
        load("model.py:biuld", folder)
    assert caught.value.hint == "it defines: Net, build"


def test_not_callable(folder):
    with pytest.raises(EntryPointError, match="is a int, expected a callable"):
        load("model.py:SIZE", folder)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def build(:", "SyntaxError"),
        ("raise RuntimeError('two\\nlines')", "RuntimeError: two lines"),
        ("import sys; sys.exit(0)", "SystemExit: 0"),
    ],
    ids=["raises", "syntax", "two-lines", "exits"],
)
def test_import_that_fails(folder, body, said):
    (folder / "broken.py").write_text(body + "\n")
    with pytest.raises(EntryPointError) as caught:
        load("broken.py:build", folder)
    assert said in caught.value.message
    assert "\n" not in caught.value.message
    assert not [name for name in sys.modules if name.startswith("_ptq_entry_broken")]


def test_interrupt_is_not_swallowed(folder):
    (folder / "slow.py").write_text("raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        load("slow.py:build", folder)
