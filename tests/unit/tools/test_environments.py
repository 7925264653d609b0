"""Environments of other Pythons: which are found, what is installed, and what the table says of them."""

from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tools import environments

SAYS = "#!/bin/sh\necho Python {}\n"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with Python 3.12 of pyenv, whose program on the PATH says that it was not chosen."""
    monkeypatch.setattr(environments, "PLACE", tmp_path / "environments")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    interpreter = tmp_path / "pyenv" / "versions" / "3.12.9" / "bin" / "python"
    interpreter.parent.mkdir(parents=True)
    for path, text in {
        tmp_path / "python3.12": "#!/bin/sh\nexit 127\n",
        interpreter: SAYS.format("3.12.9"),
    }.items():
        path.write_text(text)
        path.chmod(0o755)
    return interpreter


def test_what_is_missing_is_named(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = list(environments.environments(("3.12", "3.13"), ("lowest", "newest")))
    assert [(made.folder.name, made.interpreter) for made in found] == [
        ("3.12-lowest", machine),
        ("3.12-newest", machine),
    ]
    assert capsys.readouterr().out == "Python 3.13: skipped, because this machine does not have it\n"


def test_a_machine_with_one_python_passes(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine.unlink()
    assert environments.main(["--short"]) == 0
    assert "environments: skipped" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("said", "status", "counts"),
    [
        ("5000 passed, 7 skipped in 9s", 0, ("5000", "0", "7")),
        ("2 failed, 5000 passed, 1 error in 9s", 1, ("5000", "3", "0")),
        ("3 passed in 1s", 0, ("3", "1", "0")),
        ("no such option", 4, ("0", "1", "0")),
    ],
    ids=["passed", "failed", "few", "none"],
)
def test_few_tests_or_a_failure_fail(
    said: str, status: int, counts: tuple[str, ...], machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pytest_says(made: environments.Environment, words: object, **options: object) -> int:
        made.log.write_text(f"...\n{said}\n")
        return status

    monkeypatch.setattr(environments, "install", lambda made, keep, cuda: False)
    monkeypatch.setattr(environments, "run", pytest_says)
    environments.PLACE.mkdir()
    made = environments.Environment(python="3.12", versions="lowest", interpreter=machine)
    assert made.log.name == "3.12-lowest.log"
    row = environments.try_environment(made, short=False, cuda=False)
    assert row[:6] == ("3.12", "lowest", "no", *counts)


def test_the_lowest_versions_are_the_ends_of_the_ranges() -> None:
    wanted = [Requirement(text) for text in environments.requirements("lowest", has_torch=True)]
    torch = {item.name for item in wanted} - {
        Requirement(text).name for text in environments.requirements("lowest", has_torch=False)
    }
    assert torch == environments.NEED_TORCH
    exact = {item.name for item in wanted if str(item.specifier).startswith("==")}
    assert {"numpy", "onnx", "onnxruntime", "pyarrow", "torch"} <= exact and "pytest" not in exact
