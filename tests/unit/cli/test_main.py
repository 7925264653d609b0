"""Of several processes the first speaks, and all end after it.

The command finds a subcommand, and turns what goes wrong into a status and a line.
"""

import copy
import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import ptq_cli
from ptq_cli.cli import main as ranks
from ptq_cli.cli.main import COMMANDS, cli, main, run
from ptq_cli.setup import ranks as talk
from ptq_cli.setup.ranks import Ranks
from ptq_cli.terminal.options.help_sections import (
    DATA,
    EVALUATION,
    GLOBAL,
    OWN,
    SECTIONS,
    HelpContext,
    SectionOption,
)
from tests.day import fewer
from tests.each_case import each_case

VARIABLES = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


@pytest.fixture
def parted(monkeypatch: pytest.MonkeyPatch) -> list[Ranks]:
    """The ranks that came to the parting."""
    found: list[Ranks] = []
    monkeypatch.setattr(talk, "part_together", found.append)
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    return found


@pytest.mark.parametrize(
    ("rank", "debug", "out", "err"),
    [
        ("0", False, "result\n", "talk\n"),
        ("1", False, "", ""),
        ("1", True, "", "talk\n"),
        (None, False, "result\n", "talk\n"),
        ("nonsense", False, "result\n", "talk\n"),
    ],
)
def test_who_speaks(parted, monkeypatch, capsys, rank, debug, out, err):
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    with ranks.only_first_rank_prints(debug=debug):
        print("result")
        print("talk", file=sys.stderr)
        assert parted == []
    assert capsys.readouterr() == (out, err)
    assert [item.rank for item in parted] == ([int(rank)] if rank in ("0", "1") else [])


def test_a_rank_parts_even_where_it_fails(parted: list[Ranks], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(ZeroDivisionError), ranks.only_first_rank_prints(debug=False):
        raise ZeroDivisionError
    assert len(parted) == 1


# The last one would look for plug-ins.
HEAVY = "{'torch', 'onnx', 'onnxruntime', 'onnx_ir', 'numba', 'importlib.metadata'}"
WIDTH = 80


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(WIDTH))


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    out = capsys.readouterr().out
    for name in COMMANDS:
        assert f"\n  {name} " in out
    assert "Exit status: 0 done, 1 bug in ptq, 2 usage" in out


@each_case("command", COMMANDS)
@each_case("flag", ["--help", "-h"])
def test_help_of_a_command_has_an_example_and_fits_80_columns(command, flag, capsys):
    assert run([command, flag]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert f"Examples:\n    ptq {command}" in captured.out
    assert [line for line in captured.out.splitlines() if len(line) > WIDTH] == []


def test_help_has_both_names_whoever_looked_before(capsys):
    command = cli.get_command(click.Context(cli), "gate")
    assert command is not None
    fresh = copy.copy(command)
    fresh._help_option = None
    fresh.get_params(click.Context(fresh))
    with pytest.raises(SystemExit, match="0"):
        fresh.main(["-h"])
    assert "Examples:" in capsys.readouterr().out


def every_command() -> Iterator[tuple[str, click.Command]]:
    """Yields each command and each command in one, with what one types."""
    group = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(group, name)
        yield name, command
        if isinstance(command, click.Group):
            yield from ((f"{name} {inner}", found) for inner, found in command.commands.items())


def test_every_option_is_explained_under_a_heading() -> None:
    for name, command in every_command():
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, (name, parameter.name)
                assert isinstance(parameter, SectionOption), (name, parameter.name)
                assert parameter.section in SECTIONS


def test_commands_that_share_an_option_have_it_under_one_heading() -> None:
    headings: dict[str, set[str]] = {}
    for _, command in every_command():
        for parameter in command.params:
            if isinstance(parameter, SectionOption) and parameter.section != OWN:
                headings.setdefault(parameter.opts[0], set()).add(parameter.section)
    # Of ptq evaluate and ptq analyze the evaluation data are the data; ptq quantize has data of two kinds.
    assert {name: found for name, found in headings.items() if len(found) > 1} == {
        "--eval-data": {DATA, EVALUATION},
        "--eval-samples": {DATA, EVALUATION},
    }


def test_the_help_of_quantize_has_the_headings_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["quantize", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = [line.rstrip(":") for line in lines if line.rstrip(":") in SECTIONS]
    assert found == [section for section in SECTIONS if section in found] and len(found) > 6
    # The common ones first.
    flags = [line.split()[0] for line in lines if line.startswith("  --") and "  " in line.strip()]
    assert flags[:3] == ["--data", "--samples", "--arch"]
    assert lines[-1] == "  Every command also takes -q, --debug and -h; ptq --help describes them."


MOST = 23  # Options in the help of a command


def test_help_shows_few_commands_and_few_options() -> None:
    assert len(COMMANDS) == 15
    for name, command in every_command():
        shown = [
            item for item in command.params if isinstance(item, SectionOption) and item.section != GLOBAL
        ]
        assert len(shown) <= MOST, name


@pytest.mark.parametrize("width", [60, 80, 160])
def test_help_breaks_no_word(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    context = cli.make_context("ptq", [], resilient_parsing=True)
    for name, command in every_command():
        inner = HelpContext(command, info_name=name, parent=context)
        text = command.get_help(inner)
        assert max(map(len, text.splitlines())) <= min(width, 100), name
        # Whatever was wrapped, its words are whole.
        words = set(text.split())
        for item in command.get_params(inner):
            if getattr(item, "section", GLOBAL) == GLOBAL:
                continue  # Only the help of ptq has it.
            if (record := item.get_help_record(inner)) is not None:
                assert set(" ".join(record).split()) <= words, name
        wanted = f"{command.help} {command.epilog or ''}".replace("\b", "").split()
        assert set(wanted) <= words, name


@pytest.mark.parametrize(
    ("words", "found"),
    [("ptq ev", ["evaluate"]), ("ptq export --prefer l", ["latency"]), ("ptq recipe sch", ["schema"])],
)
def test_a_shell_completes_commands_and_choices(words, found, monkeypatch, capsys):
    monkeypatch.setenv("_PTQ_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    assert run([]) == 0
    assert capsys.readouterr().out.split() == [f"plain,{name}" for name in found]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"ptq, version {ptq_cli.__version__}\n"
    assert run([]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err[:34]) == ("", "Usage: ptq [OPTIONS] COMMAND [ARGS")
    with pytest.raises(SystemExit) as caught:
        main(["gate", "nowhere.json"])
    assert caught.value.code == 2


USAGE: dict[str, tuple[list[str], str]] = {
    "a misspelt command": (["exprot"], "there is no command 'exprot' (did you mean 'export'?)"),
    "a misspelt command in a command": (
        ["recipe", "chekc"],
        "ptq recipe has no command 'chekc' (did you mean 'check'?)",
    ),
    "a misspelt option": (
        ["export", "--ouptut", "x"],
        "ptq export has no option '--ouptut' (did you mean '--output'?)",
    ),
    "a variable of the shell that is not set": (["quantize", ""], "the model's name is empty"),
    "an empty name among several": (["report", "a.json", ""], "the report's name is empty"),
    "an option's empty path": (["export", "--run", ""], "the value of --run is empty"),
    "an empty pattern among several": (
        ["export", "--exclude", "head", "--exclude="],
        "the value of --exclude is empty",
    ),
    "a file whose name begins with a dash": (["inspect", "-x.onnx"], "ptq inspect has no option '-x'"),
    "an option before the command": (["--run", "x", "export"], "ptq has no option '--run'"),
}


@pytest.mark.parametrize(("words", "message"), USAGE.values(), ids=USAGE.keys())
def test_misuse_is_one_line_and_a_hint(words, message, capsys):
    assert run(words) == 2
    first, hint = capsys.readouterr().err.splitlines()
    assert first == f"error PTQ-USAGE-001: {message}"
    assert hint.startswith("hint: ")


FAILURES: dict[str, tuple[BaseException, int, str]] = {
    "a bug": (
        ZeroDivisionError("division\nby zero"),
        1,
        "bug in ptq ZeroDivisionError: division\nhint: run the",
    ),
    "a bug with a hostile text": (KeyError("\x1b[2J"), 1, "bug in ptq KeyError"),
    "an end of file": (EOFError("no more"), 1, "bug in ptq EOFError: no more"),
    "no memory": (
        MemoryError(),
        2,
        "error PTQ-RUNTIME-004: there is not enough memory\nhint: pass smaller batches",
    ),
    "no memory, as the system says": (
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        2,
        "error PTQ-RUNTIME-004: there is not enough memory\nhint: pass smaller batches",
    ),
    "no memory, as the loader says": (
        ImportError("libtorch.so: failed to map segment from shared object"),
        2,
        "error PTQ-RUNTIME-004: there is not enough memory\nhint: pass smaller batches",
    ),
    "no thread": (
        RuntimeError("can't start new thread"),
        2,
        "error PTQ-RUNTIME-004: there is not enough memory\nhint: pass smaller batches",
    ),
    "a model that is too deep": (
        RecursionError("maximum recursion depth exceeded"),
        2,
        "error PTQ-MODEL-005: the model has more operators in a row",
    ),
    "no disk space": (
        OSError(errno.ENOSPC, "No space left on device", "/tmp/x"),
        2,
        "error PTQ-FILE-001: '/tmp/x' cannot be used: no space left on device\nhint: check",
    ),
    "an error without a file": (
        OSError("odd"),
        2,
        "error PTQ-FILE-001: stdout or a file cannot be used: odd",
    ),
    "an exit": (SystemExit(0), 2, "error PTQ-ENTRY-001: user code called sys.exit(0)"),
    "an interrupt": (KeyboardInterrupt(), 130, "interrupted; earlier outputs are unchanged\n"),
}


@pytest.mark.parametrize(("error", "status", "says"), FAILURES.values(), ids=FAILURES.keys())
def test_a_failure_becomes_a_status_and_a_line(error, status, says, monkeypatch, capsys):
    def fail(*_arguments: object) -> None:
        raise error

    monkeypatch.setattr("ptq_cli.pipeline.run_compare.run_gate", fail)
    assert run(["gate", "report.json"]) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(says)
    assert "\x1b" not in captured.err
    assert "Traceback" not in captured.err


@pytest.mark.parametrize("words", [["gate", "nowhere.json", "--debug"], ["--debug", "gate", "nowhere.json"]])
def test_debug_shows_the_traceback(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 2
    err = capsys.readouterr().err
    assert err.startswith("Traceback")
    assert "error PTQ-FILE-001: report 'nowhere.json' does not exist" in err


def test_a_folder_that_is_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gone").mkdir()
    os.chdir(tmp_path / "gone")  # The fixture changes back.
    (tmp_path / "gone").rmdir()
    for words in (["inspect", "model.onnx"], ["gate", "nowhere.json"]):
        assert run(words) == 2
    first, _, second, _ = capsys.readouterr().err.splitlines()
    assert first == "error PTQ-FILE-001: the current folder does not exist any more"
    assert second == "error PTQ-FILE-001: report 'nowhere.json' does not exist"


@pytest.mark.parametrize(
    "words", fewer([["export", "--help"], ["--help"], ["recipe", "schema", "tune"], ["recipe", "schema"]], 4)
)
def test_python_without_docstrings_says_the_same(words, capsys):
    command = [sys.executable, "-OO", "-m", "ptq_cli", *words]
    without = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run(words) == 0
    assert capsys.readouterr().out == without.stdout


QUICK = [
    ["--help"],
    *([name, "--help"] for name in COMMANDS),
    ["calibrate", "--batch-size", "8"],  # A setting.
    ["gate", "pyproject.toml", "--min", "sqnr_db=1"],
    ["calbrate"],
    ["calibrate", "--mehtod", "max"],
]


def test_answers_that_need_no_library_import_none() -> None:
    code = f"""
import sys
from ptq_cli.cli.main import run
for words in {QUICK}:
    run(words)
    assert not {HEAVY} & set(sys.modules), words
"""
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
