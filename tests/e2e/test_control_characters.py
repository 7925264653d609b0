"""No output has a character that a terminal obeys, whatever the names of a model and its files are."""

import re
import tomllib
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from ptq_cli.cli.main import run
from tests.e2e.conftest import make_arrays, make_onnx, make_weights, untimed

HOSTILE = "\x1b[31m\x07\x08\x7f\x9b\u202e\u2066\u2028\r\n\x00"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
IN_A_FILE_NAME = HOSTILE.replace("\x00", "")
BINARY = (".onnx", ".safetensors", ".npz")


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder with a model of which every name is hostile, and data; returns the model's name."""
    monkeypatch.chdir(tmp_path)
    proto = make_onnx(make_weights())
    graph = proto.graph
    graph.name = graph.doc_string = proto.producer_name = f"g{HOSTILE}"
    for item in (*graph.input, *graph.output, *graph.initializer):
        item.name += HOSTILE
    for node in graph.node:
        node.name += HOSTILE
        for names in (node.input, node.output):
            names[:] = [f"{name}{HOSTILE}" for name in names]
    graph.input[0].name = graph.node[0].input[0] = f"x{IN_A_FILE_NAME}"  # No option takes a NUL.
    helper.set_model_props(proto, {f"note{HOSTILE}": HOSTILE})
    onnx.save(proto, f"m{IN_A_FILE_NAME}.onnx")
    for name, seed in (("calib", 1), ("eval", 2)):
        arrays = make_arrays(32, seed)
        np.savez(f"{name}.npz", **arrays)
    return f"m{IN_A_FILE_NAME}.onnx"


def require_clean(folder: Path, told: str) -> None:
    found = {"the terminal": OBEYED.findall(told)}
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix not in BINARY:
            found[path.name] = OBEYED.findall(path.read_bytes().decode())
    assert {name: letters for name, letters in found.items() if letters} == {}


def test_names_of_a_model_move_no_cursor_in_any_output(
    hostile: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
):
    renamed = ["--set", f"data.rename.x=x{IN_A_FILE_NAME}"]
    given, told, statuses = ["--data", "calib.npz", "--eval-data", "eval.npz", *renamed], "", {}
    for words in (
        ["inspect", hostile],
        ["inspect", hostile, "--json"],
        ["recipe", "init", hostile, "--output", "new.toml"],
        ["quantize", hostile, *given, "--min", "sqnr_db=99", "--max-drop", "top1=0"],
        ["analyze"],
        ["report"],
        ["inspect", "--tensor", f"relu{HOSTILE}"],
        ["inspect"],
        ["report", "ptq-run", "ptq-run", "--page", "compared.html"],
        ["drift", "eval.npz", *renamed],
        ["verify"],
    ):
        statuses[words[0]] = run(untimed(words))
        captured = capfd.readouterr()
        told += captured.out + captured.err
    require_clean(tmp_path, told)
    assert set(statuses.values()) <= {0, 3}, statuses
    assert {path.name for path in Path("ptq-run").iterdir()} >= {"report.html", "report.md", "junit.xml"}
    assert tomllib.loads(Path("new.toml").read_text())["model"] == {"path": hostile}
