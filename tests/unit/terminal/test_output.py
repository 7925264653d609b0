"""Tables, JSON and lines on stdout."""

import json

import pytest

from ptq_cli.report.text.numbers import Table
from ptq_cli.terminal.output import print_json, print_table, say, tell

ROWS = (
    ("encoder.layers.0.attention", "MatMul", "[?, 64, 128]", "part of something with a rather long name"),
    ("fc", "Gemm", "[?, 10]", ""),
)
TABLE = Table(("layer", "op", "output", "reason"), ROWS)


@pytest.mark.parametrize("width", [60, 80, 160])
def test_a_table_fits_the_width(width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    print_table(TABLE, whole=(0, 1, 2), optional=(1, 2))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    assert any("encoder.layers.0.attention" in line for line in lines)


def test_columns_that_do_not_fit_are_left_out(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "70")
    print_table(TABLE, whole=(0, 1, 2), optional=(1, 2))
    out = capsys.readouterr().out
    assert "output" not in out
    assert "reason" in out


def test_a_table_without_rows_is_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(Table(("a",), ()))
    assert capsys.readouterr().out == ""


def test_cells_are_text_and_no_markup(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    print_table(Table(("a",), (("[bold]x[/bold] [link=evil]y\x1b[2J\nz",),)))
    assert "[bold]x[/bold] [link=evil]y?[2J?z" in capsys.readouterr().out


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"name": "\x1b[2J ü"})
    out = capsys.readouterr().out
    assert json.loads(out) == {"name": "\x1b[2J ü"}
    assert out.isascii()
    assert "\x1b" not in out


def test_result_and_talk_go_their_ways(capsys: pytest.CaptureFixture[str]) -> None:
    say("result\x07")
    tell("talk\x07")
    assert capsys.readouterr() == ("result?\n", "talk?\n")
