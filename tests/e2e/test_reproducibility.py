"""The same input gives the same bytes; what cannot matter does not."""

import json
from pathlib import Path
from typing import Any

import pytest

WORDS = "quantize {} --data calib.npz --eval-data eval.npz --set run.evaluate=true --run {}"
MODELS = {"ONNX": "model.onnx", "PyTorch": "model.pt --arch model.py:build"}


def read_all(run: Path) -> dict[str, bytes]:
    report = json.loads((run / "report.json").read_text())
    del report["times"]
    names = ("calibration.safetensors", "model.float.onnx", "model_int8.onnx", "recipe.toml", "junit.xml")
    return {name: (run / name).read_bytes() for name in names} | {"report": json.dumps(report).encode()}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_two_runs_write_the_same_bytes(folder: Path, ptq: Any, model: str) -> None:
    for run in ("one", "two"):
        assert ptq(WORDS.format(model, run)).status == 0
    assert read_all(folder / "one") == read_all(folder / "two")


def test_batch_size_and_threads_change_no_byte_of_the_statistics(folder: Path, ptq: Any) -> None:
    # Of this model. Where ONNX Runtime blocks a matrix multiplication by its number of rows, a sum may be
    # added in another order, and an activation differ in its last bit; the statistics then count what it is.
    for number, flags in enumerate(
        (
            "",
            "--set data.batch_size=1",
            "--set data.batch_size=5 --set runtime.threads=1",
            "--set runtime.threads=3",
        )
    ):
        assert ptq(f"quantize model.onnx --data calib.npz --run {number} {flags}").status == 0
        for name in ("calibration.safetensors", "model_int8.onnx"):
            assert (folder / str(number) / name).read_bytes() == (folder / "0" / name).read_bytes(), flags


def test_a_run_directory_holds_these_files_and_no_other(folder: Path) -> None:
    assert sorted(path.name for path in (folder / "ptq-run").iterdir()) == [
        "calibration.safetensors",
        "details.json",
        "junit.xml",
        "model.float.onnx",
        "model_int8.intoto.json",
        "model_int8.onnx",
        "recipe.toml",
        "report.html",
        "report.json",
        "report.md",
        "report.toml",
    ]


def test_no_output_tells_of_the_machine(folder: Path, ptq: Any, tmp_path: Path) -> None:
    assert ptq(WORDS.format("model.pt --arch model.py:build", "new")).status == 0
    for path in (folder / "new").iterdir():
        assert str(tmp_path).encode() not in path.read_bytes(), path.name
