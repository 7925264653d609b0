import shutil
import sys
from pathlib import Path

import pytest

from ptq_cli.core import trust
from ptq_cli.core.entry_points import load_entry_point
from ptq_cli.core.errors import EntryPointError, UntrustedCodeError
from ptq_cli.recipe.locations import code_settings
from ptq_cli.recipe.recipe_layers import file_layer


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


def test_an_installed_module_is_not_shadowed_and_sees_nothing_of_the_folder(folder, tmp_path_factory):
    installed = tmp_path_factory.mktemp("installed")
    (installed / "metric_package.py").write_text(
        "try:\n    import optional_part\nexcept ImportError:\n    optional_part = None\n"
        "def build(): return 'installed', optional_part\n"
    )
    sys.path.append(str(installed))
    for name in ("metric_package", "optional_part"):
        (folder / f"{name}.py").write_text("raise SystemExit('it ran')\n")
    assert load("metric_package:build", folder)() == ("installed", None)


SAMPLES = Path(__file__).parents[3] / "sample_models"


@pytest.mark.parametrize("recipe", sorted(SAMPLES.glob("*/ptq.toml")), ids=lambda path: path.parent.name)
def test_the_code_of_the_samples_is_known_wherever_it_lies(recipe, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(trust._process, "trusts_all", False)
    copy = tmp_path / recipe.parent.name
    copy.mkdir()
    for path in recipe.parent.glob("*.py"):
        shutil.copy(path, copy)
    shutil.copy(recipe, copy)
    for key, setting in code_settings(file_layer(copy / "ptq.toml").table).items():
        if setting != "model.path":
            assert callable(load(key, copy))
            location, _, name = key.rpartition(":")
            with Path(location).open("a") as stream:
                stream.write("# changed\n")
            with pytest.raises(UntrustedCodeError, match=name):
                load(key, copy)
            shutil.copy(recipe.parent / Path(location).name, copy)
