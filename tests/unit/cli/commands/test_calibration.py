"""``ptq calibration show``: its help, and how shares and numbers read."""

import subprocess
import sys

import pytest

from ptq_cli.cli.main import run
from ptq_cli.cli.shown.channel_tables import format_clipped
from ptq_cli.report.text.tables import format_share
from tests.each_case import each_case

HEAVY = "{'torch', 'onnx', 'onnxruntime', 'onnx_ir', 'numba', 'matplotlib'}"


def test_the_help_has_examples_and_fits_80_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["calibration", "show", "--help"]) == 0
    out = capsys.readouterr().out
    assert "Examples:\n    ptq calibration show" in out
    assert [line for line in out.splitlines() if len(line) > 80] == []


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["calibration"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("Usage: ptq calibration [OPTIONS] COMMAND")


@pytest.mark.parametrize("words", [["calibration", "show", "--help"], ["calibration", "show", "--sort", "x"]])
def test_answers_that_need_no_library_import_none(words: list[str]) -> None:
    code = f"import sys; from ptq_cli.cli.main import run; run({words!r}); \
print({HEAVY} & set(sys.modules), file=sys.stderr)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stderr.splitlines()[-1] == "set()"


@each_case("total", [3, 1000, 10**6, 10**12])
@each_case("count", [0, 1, 2])
def test_a_share_is_0_or_100_only_where_it_is(count: int, total: int) -> None:
    assert (format_share(count, total) == "0 %") == (count == 0)
    assert (format_share(total - count, total) == "100 %") == (count == 0)


SHARES = {1: "0.0001 %", 12: "0.0012 %", 12_345: "1.23 %", 998_990: "99.9 %", 999_990: "99.999 %"}


@each_case("count, text", SHARES.items())
def test_a_share_has_the_digits_that_tell(count: int, text: str) -> None:
    assert format_share(count, 10**6) == text


def test_a_cut_bin_makes_the_share_a_bound() -> None:
    assert format_clipped((10, 20), 1000) == "≤2 %"
    assert format_clipped((20, 20), 1000) == "2 %"
