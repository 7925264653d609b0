"""What docs/analyze.md shows is what happens: its session runs on a small copy of the sample."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import get_args

from ptq_cli.report.analysis.tensor_rows import Cause
from tools.analysis_session import SESSION

MakeSample = Callable[[str], Path]
PAGE = (Path(__file__).parents[2] / "docs" / "analyze.md").read_text(encoding="utf-8")
SHOWN_AS = {"channel imbalance": "imbalance", "bias overflow": "bias"}


def session() -> list[str]:
    found = re.search(r"```console\n(.*?)\n```", PAGE, re.DOTALL)
    assert found is not None
    return found[1].splitlines()


def masked(line: str) -> str:
    return " ".join(re.sub(r"-?\d[\d.,]*(e-?\d+)?|\b[kM]B\b|─+", "#", line).split())


def is_row(line: str) -> bool:
    """Tell whether few samples may change what stands there: a row, or what is proposed of one."""
    return re.match(r"\s+\d|  \w|no cause|to try", line) is not None


def test_the_session_is_what_happens(make_sample: MakeSample, ptq: Callable[..., object]) -> None:
    folder = make_sample("cifar10_cnn")
    commands = [line.removeprefix("$ ") for line in session() if line.startswith("$ ")]
    assert commands == list(SESSION)
    printed: set[str] = set()
    for command in commands:
        done = ptq(command, folder, COLUMNS="80")
        assert done.returncode == 0, done.stdout  # type: ignore[attr-defined]
        printed |= {masked(line) for line in done.stdout.splitlines()}  # type: ignore[attr-defined]
    shown = {masked(line) for line in session() if not line.startswith("$ ") and not is_row(line)}
    missing = shown - printed
    assert not missing, "run: python -m tools.analysis_session"


def test_the_session_fits_its_terminal() -> None:
    tables = [line for line in session() if is_row(line) or "own/accum." in line]
    assert max(len(line) for line in tables if not line.startswith("  s")) <= 80


def test_every_cause_is_described() -> None:
    rows = re.findall(r"^\| ([\w ]+) \| .+ \| .+ \|$", PAGE, re.MULTILINE)
    for cause in filter(None, get_args(Cause)):
        assert SHOWN_AS.get(cause, cause) in rows, cause
