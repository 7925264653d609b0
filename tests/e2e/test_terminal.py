"""What reaches the terminal: widths, colors, broken pipes, and names that were made to deceive."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from ptq_cli.cli.main import COMMANDS as NAMES
from ptq_cli.cli.main import run
from ptq_cli.report.text.numbers import Table
from ptq_cli.terminal import output
from ptq_cli.terminal.output import column_widths
from tests.day import fewer
from tests.e2e.conftest import SAMPLES
from tests.each_case import each_case

HOSTILE = "evil\x1b[2J\x1b]0;title\x07[red]layer[/red]\nsecond line"
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
WIDTHS = [80, 160]


@pytest.fixture
def hostile(folder: Path) -> Path:
    """A model whose layers, tensors and inputs have hostile names, and a dead convolution."""
    proto = onnx.load(folder / "model.onnx")
    for node in proto.graph.node:
        node.name = f"{node.name} {HOSTILE}"
        node.input[:] = [name if "." in name else f"{name} {HOSTILE}" for name in node.input]
        node.output[:] = [f"{name} {HOSTILE}" for name in node.output]
    proto.graph.input[0].name += f" {HOSTILE}"
    proto.graph.output[0].name += f" {HOSTILE}"
    for tensor in proto.graph.initializer[:2]:
        zeros = np.zeros(list(tensor.dims), np.float32)
        tensor.CopyFrom(numpy_helper.from_array(zeros, tensor.name))
    onnx.save(proto, folder / "hostile.onnx")
    with np.load(folder / "calib.npz") as arrays:
        np.save(folder / "calib.npy", arrays["x"])
    return folder


COMMANDS = [
    "inspect hostile.onnx",
    "calibrate hostile.onnx --data calib.npy",
    "quantize hostile.onnx --data calib.npy --eval-data calib.npy --min cosine=0.1",
    "calibrate hostile.onnx --data calib.npz",  # An error that names an input.
    "calibrate hostile.onnx --data calib.npy --run hostile.onnx/\x1b[2J",  # One that names a file.
]


@each_case("words", COMMANDS)
def test_hostile_names_do_not_reach_the_terminal(hostile: Path, ptq: Any, words: str) -> None:
    outcome = ptq(words)
    for text in (outcome.out, outcome.err):
        assert all(character.isprintable() or character == "\n" for character in text)
    assert "Traceback" not in outcome.err
    assert outcome.status in (0, 2, 3)
    if words.startswith("quantize"):
        assert "\x1b" not in (hostile / "ptq-run/report.md").read_text()


@pytest.mark.parametrize("width", WIDTHS)
def test_a_hostile_file_name_breaks_no_line(folder, ptq, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    name = "model\n\x1b[31m.onnx"
    (folder / name).write_bytes((folder / "model.onnx").read_bytes())
    outcome = ptq("inspect", name)
    assert outcome.status == 0
    assert "\x1b" not in outcome.out


@pytest.fixture(scope="module")
def quantized(samples: Path, calibrated_cifar: Path) -> Path:
    """The image sample's folder with a run that was calibrated and exported on few samples."""
    folder = samples / "cifar10_cnn"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert (
            run(["quantize", f"{calibrated_cifar}/model.float.onnx", "--samples", "16", "--run", "table"])
            == 0
        )
    return folder


MAIN_TABLES = {
    "inspect": "inspect table/model.float.onnx",
    "inspect --all": "inspect table/model.float.onnx --all",
    "report": "evaluate --run table --eval-samples 4 --min sqnr_db=99 --metric class_accuracy --metric top1",
    "gate": "gate table/report.json --max-drop top1=1%",
    "report, two": "report table/report.json table/report.json",
    "inspect, a run": "inspect --run table",
    "inspect, a tensor": "inspect --tensor stem.activation/Clip --run table",
    "verify": "verify --run table --all",
    "bench": "bench --run table --runs 2",
    "analyze": "analyze --run table --eval-samples 4 --layers stem*",
    "drift": f"drift {SAMPLES}/cifar10_cnn/eval --samples 24 --run table",
}


def test_no_word_of_a_table_is_split(quantized, ptq, monkeypatch, capfd):
    monkeypatch.chdir(quantized)
    tables: list[tuple[str, Table, dict[str, Any]]] = []
    some = dict(fewer(MAIN_TABLES.items(), 2))  # Each that others read is among them.
    for name, words in some.items():

        def keep(table: Table, width: int, *, _name: str = name, **columns: Any) -> dict[int, int] | None:
            tables.append((_name, table, columns))
            return column_widths(table, width, **columns)

        monkeypatch.setattr(output, "column_widths", keep)
        assert ptq(words).status in (0, 3), name
    monkeypatch.undo()
    assert {name for name, _, _ in tables} == set(some)
    for name, table, columns in tables:
        known = {
            word.strip(":;") for row in (table.header, *table.rows) for cell in row for word in cell.split()
        }
        for width in (60, 80, 160):
            monkeypatch.setenv("COLUMNS", str(width))
            output.print_table(table, **columns)
            shown = capfd.readouterr().out
            assert max(map(len, shown.splitlines())) <= width, (name, width)
            words_shown = {word.strip(":;") for word in re.sub("─+", "", shown).split()}
            assert words_shown <= known, (name, width, words_shown - known)
            assert all(row[0].strip() in shown or len(row[0].split()) > 1 for row in table.rows), (
                name,
                width,
            )


@pytest.mark.parametrize("width", [60, pytest.param(160, marks=pytest.mark.nightly)])
def test_a_message_on_a_terminal_ends_its_lines_between_words(folder: Path, width: int) -> None:
    plain = {"TERM": "xterm-256color", "NO_COLOR": "1", "COLUMNS": ""}
    lines = on_a_terminal(folder, "nonsense", width=width, **plain).replace("\r\n", "\n").splitlines()
    assert max(map(len, lines)) <= width
    hint = " ".join(" ".join(lines).split())
    assert hint == (
        "error PTQ-USAGE-001: there is no command 'nonsense' "
        f"hint: the commands are {', '.join(NAMES)}; ptq --help describes them"
    )


MISSED = "gate ptq-run/report.json --min sqnr_db=99"


@pytest.mark.parametrize(
    ("words", "closed"),
    [
        (MISSED, "stdout"),
        ("inspect model.onnx", "stderr"),
        *(
            pytest.param(words, closed, marks=pytest.mark.nightly)
            for words, closed in (
                ("inspect model.onnx", "stdout"),  # rich
                ("inspect --help", "stdout"),  # click
                ("inspect --help", "stderr"),
                (MISSED, "stderr"),
            )
        ),
    ],
)
def test_a_reader_that_is_gone_changes_nothing_but_what_is_read(folder, words, closed):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "ptq_cli", *words.split()]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, closed: writer}
    process = subprocess.run(command, cwd=folder, text=True, check=False, **streams)
    os.close(writer)
    assert process.returncode == (3 if words == MISSED else 0)
    assert not process.stderr


@pytest.mark.nightly
def test_work_is_done_although_nobody_reads_about_it(folder: Path) -> None:
    quantize = "quantize model.onnx --data calib.npz --prefer size --run new"
    words = f"{sys.executable} -m ptq_cli {quantize} 2>&1 | head -n 1"
    subprocess.run(words, cwd=folder, shell=True, check=True)
    assert (folder / "new/model_int8.onnx").exists()


@pytest.mark.parametrize(
    "closed",
    [
        "<&- >&- 2>&-",
        *(pytest.param(one, marks=pytest.mark.nightly) for one in (">&-", "2>&-", "2>/dev/full")),
    ],
)
def test_the_exit_status_is_the_same_with_closed_streams(folder: Path, closed: str) -> None:
    for words, status in ((MISSED, 3), ("gate nowhere.json", 2), ("--version", 0)):
        command = f"{sys.executable} -m ptq_cli {words} {closed}"
        process = subprocess.run(command, cwd=folder, shell=True, capture_output=True, text=True, check=False)
        assert process.returncode == status, words
        assert "Traceback" not in process.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_stdout_is_an_error(folder: Path) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "ptq_cli", "inspect", "model.onnx"]
        process = subprocess.run(
            command, cwd=folder, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert process.returncode == 2
    assert process.stderr.count("no space left on device") == 1
    assert "Traceback" not in process.stderr


def on_a_terminal(folder: Path, words: str, *, width: int = 80, **environment: str) -> str:
    """Return what a command shows where stdout and stderr are a terminal of that width."""
    shown: list[bytes] = []

    def read(descriptor: int) -> bytes:
        shown.append(os.read(descriptor, 4096))
        return shown[-1]

    script = f"""
import fcntl, os, struct, sys, termios
fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 24, {width}, 0, 0))
os.chdir({str(folder)!r})
os.environ.update({environment!r})
os.execv(sys.executable, [sys.executable, "-m", "ptq_cli", *{words.split()!r}])
"""
    pty.spawn([sys.executable, "-c", script], read)
    return b"".join(shown).decode()


COLORED: dict[str, tuple[str, str]] = {
    "a table": ("gate ptq-run/report.json --min sqnr_db=99", "FAIL"),
    "an error": ("gate nowhere.json", "error"),
}


@pytest.mark.parametrize(("words", "word"), COLORED.values(), ids=COLORED.keys())
def test_color_is_for_terminals_that_want_it(folder: Path, words: str, word: str) -> None:
    color = re.compile(rf"\x1b\[[0-9;]*31m(\x1b\[1m)?{word}")
    plain = {"TERM": "xterm-256color", "COLUMNS": "80"}
    shown = on_a_terminal(folder, words, **plain)
    assert color.search(shown), shown
    without = on_a_terminal(folder, words, NO_COLOR="1", **plain)
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", without)
    # Color never carries meaning alone: without it the text is the same.
    assert ESCAPES.sub("", without) == ESCAPES.sub("", shown)


def test_a_bar_is_drawn_on_a_terminal_and_taken_away(folder: Path) -> None:
    words = "calibrate model.onnx --data calib.npz --set data.batch_size=4"
    shown = on_a_terminal(folder, words, TERM="xterm-256color", COLUMNS="80")
    assert "calibrate: " in shown
    lines: list[str] = [line.rpartition("\r")[2] for line in shown.replace("\r\n", "\n").split("\n")]
    assert [line for line in lines if "%|" in line] == []


QUIET = {
    "calibrate": "calibrate model.onnx --data calib.npz",
    "export": "export --amax max --set amax.weight_method=max",
    "evaluate": "evaluate --eval-data eval.npz --min sqnr_db=99 --set evaluation.latency=false",
    "quantize": "quantize model.onnx --data calib.npz --run all --set evaluation.latency=false",
    "inspect": "inspect",
    "bench": "bench --runs 8 --json",
    "verify": "verify",
}
ABRIDGED = ("calibrate", "export", "evaluate", "quantize")
KEPT = re.compile(r"wrote |warning: |PASS|FAIL|larger than float")


def test_quiet_leaves_verdicts_paths_warnings_and_what_was_asked_for(folder, capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    for name, words in QUIET.items():
        statuses, outs, errs = [], [], []
        for flags in ([], ["--quiet"]):
            statuses.append(run([*words.split(), *flags]))
            captured = capfd.readouterr()
            outs.append(captured.out.splitlines())
            errs.append(captured.err.splitlines())
        assert errs[1] == [line for line in errs[0] if line.startswith("warning: ")], name
        assert statuses[0] == statuses[1] != 2, name
        if name in ABRIDGED:
            assert outs[1] == [line for line in outs[0] if KEPT.match(line)] != [], name
        elif name not in ("bench", "verify"):  # Times differ.
            assert outs[1] == outs[0] != [], name


def test_talk_goes_to_stderr(folder, ptq, capfd):
    assert run(["calibrate", "model.onnx", "--data", "calib.npz"]) == 0
    captured = capfd.readouterr()
    assert "reading model.onnx …\n" in captured.err
    assert captured.err.endswith("next: ptq export --onnx\n")
    assert "…" not in captured.out
    assert "next:" not in captured.out
