"""Runs that are incomplete, stale or damaged, and outputs that cannot be written."""

import json
import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from ptq_cli.cli.main import run
from tests.each_case import each_case, table

RECIPE = """\
[model]
path = "model.pt"
arch = "model.py:build"
[calibration]
data = "calib.npz"
[evaluation]
data = "eval.npz"
[image]
mean = [0.5]
"""


def test_export_before_calibrate(refuse: Any) -> None:
    refuse("export --run new", "PTQ-RUN-001", "'new/calibration.safetensors'", hint="run ptq calibrate first")


def test_evaluate_before_export(folder: Path, refuse: Any) -> None:
    (folder / "ptq-run/model_int8.onnx").unlink()
    refuse("evaluate", "PTQ-RUN-001", "with ptq export", hint="run ptq export first")


@pytest.mark.parametrize(
    "words",
    [
        "inspect bad\udcff.onnx",
        "verify bad\udcff.onnx",
        "evaluate bad\udcff.onnx",
        "calibrate model.onnx --data bad\udcff.npz",
        "calibrate model.onnx --data calib.npz --run bad\udcff.run",
        "export --float model.onnx --output bad\udcff.out",
        "quantize model.onnx --data calib.npz --exclude bad\udcff.layer",
    ],
)
def test_a_name_that_is_not_utf_8(folder: Path, refuse: Any, words: str) -> None:
    for name in ("model.onnx", "calib.npz"):
        shutil.copy(folder / name, f"bad\udcff{Path(name).suffix}")
    refuse(words, "PTQ-FILE-001", "the name 'bad\\xff.", "is not UTF-8", hint="rename it")


def test_a_name_that_the_locale_cannot_hold(folder: Path, real_ptq: Any) -> None:
    (folder / "model.onnx").rename(folder / "größe.onnx")
    plain = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0"}
    done = real_ptq("inspect", "größe.onnx".encode(), cwd=folder, env=plain)
    assert done.returncode == 2
    assert "PTQ-FILE-001: the name 'größe.onnx' is not ASCII" in done.stderr
    assert "hint: set PYTHONUTF8=1" in done.stderr


def rename_weight(path: Path) -> None:
    model = onnx.load(path)
    model.graph.initializer[0].name = "\x1b[31mgone"
    onnx.save(model, path)


def test_what_libraries_log_of_a_damaged_model_is_not_shown(folder: Path, real_ptq: Any) -> None:
    rename_weight(folder / "ptq-run/model.float.onnx")
    done = real_ptq("export", cwd=folder)
    assert done.returncode == 2
    assert done.stderr.startswith("error PTQ-CALIB-003: ")
    assert len(done.stderr.splitlines()) == 2


@dataclass(frozen=True)
class Change:
    """What is changed after the calibration, and what the answer says of it."""

    make: Callable[[Path], object]
    says: str
    flags: str = ""


def other_weights(folder: Path) -> None:
    state = torch.load(folder / "model.pt", weights_only=True)
    state["fc.bias"] += 1
    torch.save(state, folder / "model.pt")


def edit(name: str, old: str, new: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))

    return change


CHANGES: dict[str, Change] = {
    "the checkpoint": Change(other_weights, "'model.pt' has changed since it was calibrated"),
    "the architecture's file": Change(
        edit("model.py", "torch.relu", "torch.tanh"), "'model.py' has changed since it was calibrated"
    ),
    "an image setting": Change(
        edit("ptq.toml", "[0.5]", "[0.25]"),
        "'image.mean' was [0.5] when it was calibrated, and is [0.25] now",
    ),
}


@pytest.fixture(scope="module")
def quantized_by_recipe(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The template's folder with a recipe, and a run of the PyTorch model by it."""
    copy = tmp_path_factory.mktemp("recipe") / "tiny"
    shutil.copytree(template, copy)
    (copy / "ptq.toml").write_text(RECIPE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(copy)
        assert run(["quantize", "--trust-code"]) == 0
    return copy


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_stale_calibration_is_refused(folder, quantized_by_recipe, refuse, change):
    shutil.copytree(quantized_by_recipe, folder, dirs_exist_ok=True)
    change.make(folder)
    for command in ("export", "evaluate"):
        refuse(command, "PTQ-CALIB-003", change.says, hint="run ptq calibrate again")


def test_a_quantized_model_of_an_earlier_calibration_is_refused(ptq: Any, refuse: Any) -> None:
    assert ptq("calibrate model.onnx --data eval.npz --samples 5").status == 0
    refuse("evaluate --eval-data eval.npz", "PTQ-CALIB-003", "an earlier calibration", hint="run ptq export")


DAMAGED = {
    "empty": lambda content: b"",
    "one bit flipped": lambda content: content[:-40] + bytes([content[-40] ^ 1]) + content[-39:],
}


@pytest.mark.parametrize("command", ["export", "evaluate"])
@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_calibration_is_refused(folder, refuse, damage, command):
    path = folder / "ptq-run/calibration.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    refuse(command, "PTQ-CALIB-002", "'ptq-run/calibration.safetensors'", hint="calibrate again")


QUANTIZED = table("""
    nowhere.onnx | PTQ-FILE-001 | quantized model 'nowhere.onnx' does not exist
    ptq-run | PTQ-RUN-001 | 'ptq-run' is a folder, and 'ptq-run' has no results of ptq quantize FOLDER
    model.py | PTQ-FILE-001 | is not an ONNX file
    empty.onnx | PTQ-FILE-001 | was not written by ptq export
    model.onnx | PTQ-FILE-001 | was not written by ptq export
""")


@each_case("name, code, says", QUANTIZED)
def test_a_quantized_model_that_is_none(folder: Path, refuse: Any, name: str, code: str, says: str) -> None:
    (folder / "empty.onnx").touch()
    refuse(f"evaluate {name}", code, says)


CALIBRATE = "calibrate model.onnx --data calib.npz"
QUANTIZE = "quantize model.onnx --data calib.npz"
# Which outputs are refused is tested in tests/unit/pipeline/run; here, that each command looks.
OUTPUTS = {
    **{
        f"output: a device, {words.split()[0]}": (
            f"{words} {os.devnull}",
            "PTQ-FILE-002",
            f"cannot write '{os.devnull}': it is not a regular file",
        )
        for words in (f"{QUANTIZE} -o", "export -o", "export --float model.onnx -o")
    },
    "output: the data": (f"{QUANTIZE} -o calib.npz", "PTQ-USAGE-001", "overwrite the calibration data"),
    "output: the statistics": (
        "export -o ptq-run/calibration.safetensors",
        "PTQ-USAGE-001",
        "would overwrite the run's own calibration.safetensors",
    ),
}


@pytest.mark.parametrize(("words", "code", "says"), OUTPUTS.values(), ids=OUTPUTS.keys())
def test_an_output_that_cannot_be_written(refuse: Any, words: str, code: str, says: str) -> None:
    refuse(words, code, says)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize(
    ("words", "name"),
    [
        (f"{CALIBRATE} --run new", "calibration.safetensors"),
        ("export", "model_int8.onnx"),
        ("evaluate", "report.html"),
        ("analyze", "analysis.json"),
        ("report", "report.html"),
        ("merge ptq-run --run new", "calibration.safetensors"),
    ],
)
def test_a_pipe_in_an_output_s_place(folder: Path, refuse: Any, words: str, name: str) -> None:
    pipe = folder / ("new" if "new" in words else "ptq-run") / name
    pipe.parent.mkdir(exist_ok=True)
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)
    refuse(words, "PTQ-FILE-002", f"{name}': it is not a regular file")
    assert pipe.is_fifo()


def test_a_link_and_permissions_outlive_an_export(folder: Path, ptq: Any) -> None:
    (folder / "kept").mkdir()
    (folder / "kept" / "q.onnx").write_bytes(b"earlier")
    (folder / "kept" / "q.onnx").chmod(0o600)
    (folder / "q.onnx").symlink_to("kept/q.onnx")
    assert ptq("export -o q.onnx").status == 0
    assert (folder / "q.onnx").readlink() == Path("kept/q.onnx")
    assert stat.S_IMODE((folder / "kept" / "q.onnx").stat().st_mode) == 0o600
    onnx.checker.check_model(str(folder / "kept" / "q.onnx"))
    assert [path.name for path in (folder / "kept").iterdir()] == ["q.onnx"]


def test_a_failing_evaluation_leaves_quantize_without_a_trace(folder: Path, refuse: Any) -> None:
    x = np.zeros((40, 3, 8, 8), np.float32)
    x[39] = np.nan
    np.savez(folder / "late.npz", x=x, label=np.zeros(40, int))
    words = f"{QUANTIZE} --samples 5 --output out.onnx --eval-data late.npz --set run.evaluate=true"
    refuse(words, "PTQ-DATA-008", "'late.npz[39]'")


def test_a_missed_gate_still_writes_what_it_was_judged_on(folder: Path, ptq: Any) -> None:
    words = f"{QUANTIZE} --samples 5 --eval-data eval.npz --min sqnr_db=99 --run new --output out.onnx"
    assert ptq(words).status == 3
    assert json.loads((folder / "new/report.json").read_text())["verdict"] == "fail"
    assert (folder / "out.onnx").exists()
    assert not list(folder.rglob("*.partial"))


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system that takes no files")
@pytest.mark.parametrize("place", ["/proc/new", "model.py"], ids=["takes no file", "is a file"])
@pytest.mark.parametrize(
    "words",
    [
        "calibrate model.onnx --data calib.npz --run {}",
        "quantize model.onnx --data calib.npz --run {}",
        "quantize model.onnx --data calib.npz -o {}/out.onnx",
        "tune model.onnx --data calib.npz --budget sqnr_db=20 --run {}",
        "export -o {}/out.onnx",
        "bench --operators model.onnx -o {}/profile.json",
        "export --float model.onnx --output {}/out.onnx",
    ],
)
def test_a_place_that_takes_no_file_is_refused_before_the_work(
    folder: Path, ptq: Any, words: str, place: str
) -> None:
    outcome = ptq(words.format(place))
    assert outcome.status == 2
    assert outcome.err.startswith("error PTQ-FILE-002: cannot write"), outcome.err


@pytest.fixture(autouse=True)
def no_work(request: Any, monkeypatch: Any) -> None:
    """Fail if a model runs before the place is refused."""
    if request.node.originalname == "test_a_place_that_takes_no_file_is_refused_before_the_work":

        def run_nothing(*_: Any, **__: Any) -> None:
            raise AssertionError("a session was opened before the output was looked at")

        monkeypatch.setattr("onnxruntime.InferenceSession.run", run_nothing)
