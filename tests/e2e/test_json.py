"""With ``--json``, stdout is one JSON document and nothing else, for every command."""

import json
from pathlib import Path
from typing import Any

import pytest

COMMANDS: dict[str, tuple[str, int, set[str]]] = {
    "calibrate": (
        "calibrate model.onnx --data calib.npz",
        0,
        {"run", "calibration", "method", "samples", "tensors", "parity", "dead"},
    ),
    "export": (
        "export --onnx",
        0,
        {
            "format",
            "output",
            "bytes",
            "float_bytes",
            "target",
            "amax",
            "integer_kernels",
            "float_kernels",
            "widened",
            "layers",
        },
    ),
    "evaluate": ("evaluate", 0, {"format", "verdict", "metrics", "gates", "layers", "model"}),
    "evaluate, missed": ("evaluate --min sqnr_db=99", 3, {"format", "verdict", "metrics", "gates"}),
    "quantize": ("quantize model.onnx --data calib.npz", 0, {"calibration", "export", "report"}),
    "quantize, missed": (
        "quantize model.onnx --data calib.npz --eval-data eval.npz --min sqnr_db=99",
        3,
        {"calibration", "export", "report"},
    ),
    "prepare": (
        "prepare model.onnx --data calib.npz -o float.onnx",
        0,
        {
            "model",
            "kind",
            "output",
            "bytes",
            "opset",
            "nodes",
            "passes",
            "notes",
            "difference",
            "compared_on",
        },
    ),
    "inspect": (
        "inspect model.onnx",
        0,
        {"model", "kind", "inputs", "outputs", "layers", "target", "parity"},
    ),
    "inspect, PyTorch": ("inspect model.pt --arch model.py:build --data calib.npz", 0, {"parity"}),
    "gate": ("gate ptq-run/report.json --min sqnr_db=1", 0, {"verdict", "gates"}),
    "compare": (
        "compare ptq-run/report.json ptq-run/report.json",
        0,
        {"same_samples", "metrics", "bytes_before", "bytes_after", "changes", "layers"},
    ),
    "gate, missed": ("gate ptq-run/report.json --min sqnr_db=99", 3, {"verdict", "gates"}),
}


@pytest.mark.parametrize(("words", "status", "keys"), COMMANDS.values(), ids=COMMANDS.keys())
def test_stdout_is_one_document(folder: Path, ptq: Any, words: str, status: int, keys: set[str]) -> None:
    outcome = ptq(f"{words} --json")
    assert (outcome.status, outcome.err) == (status, "")
    document = json.loads(outcome.out, parse_constant=pytest.fail)
    assert keys <= set(document)


def test_an_error_leaves_stdout_empty(folder: Path, ptq: Any) -> None:
    outcome = ptq("evaluate --eval-data nowhere.npz --json")
    assert (outcome.status, outcome.out) == (2, "")


def test_onnx_runtime_prints_nothing_on_stdout(folder: Path, ptq: Any) -> None:
    path = folder / "ptq-run/model.int8.onnx"
    content = path.read_bytes()
    # An operator that is no UTF-8: ONNX Runtime's Python layer would say so on stdout, and try again.
    path.write_bytes(content.replace(b"QuantizeLinear", b"QuantizeL\xffnear"))
    assert path.read_bytes() != content
    outcome = ptq("evaluate --json")
    assert (outcome.status, outcome.out) == (2, "")
