"""Several processes under torchrun: the bytes of one, one voice, one error, and no waiting for the dead.

By day ``tests/unit/setup/test_ranks.py`` has what they say to each other.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.conftest import make_arrays
from tests.torch_needed import HAS_TORCH

FILES = ("calibration.safetensors", "model.float.onnx", "recipe.toml")
LAUNCH = (sys.executable, "-m", "torch.distributed.run")
# Three processes that import PyTorch take 10 on two idle cores; what hangs is ended all the same.
SECONDS = 540

pytestmark = [pytest.mark.timeout(600), pytest.mark.skipif(not HAS_TORCH, reason="torchrun is torch's")]

Launch = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def launch(folder: Path) -> Launch:
    """Start processes in the folder; ``--`` keeps --run from torchrun, which has --run-path."""

    def call(*words: str, processes: int = 3) -> subprocess.CompletedProcess[str]:
        command = [*LAUNCH, f"--nproc-per-node={processes}", *words]
        return subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=SECONDS
        )

    return call


def read(run: Path) -> dict[str, bytes]:
    return {name: (run / name).read_bytes() for name in FILES}


def read_report(run: Path) -> str:
    """The report of a run without its times."""
    report = json.loads((run / "report.json").read_text())
    del report["times"]
    return json.dumps(report)


def said_by_ptq(outcome: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines on stderr before torchrun's own account of what failed."""
    lines = outcome.stderr.partition("failed (exitcode")[0].splitlines()
    return [line for line in lines if line.startswith(("error ", "hint: ", "note: ", "bug ", "next: "))]


PYTORCH = "model.pt --arch model.py:build --data calib.npz --set data.batch_size=7"
MODELS = [
    pytest.param("model.onnx --data calib.npz --set data.batch_size=2", 2, id="ONNX"),
    pytest.param(PYTORCH, 3, id="PyTorch, fewer batches than ranks"),
]


@pytest.mark.nightly
@pytest.mark.parametrize(("words", "processes"), MODELS)
def test_several_processes_write_the_bytes_of_one(folder, ptq, launch, words, processes):
    one = ptq(f"calibrate {words} --run one --json")
    assert one.status == 0
    outcome = launch(
        "-m", "ptq_cli", "--", "calibrate", *words.split(), "--run", "all", "--json", processes=processes
    )
    assert outcome.returncode == 0, outcome.stderr
    assert read(folder / "all") == read(folder / "one")
    assert sorted(path.name for path in (folder / "all").iterdir()) == sorted(FILES)
    expected = {**json.loads(one.out), "run": "all", "calibration": "all/calibration.safetensors"}
    assert json.loads(outcome.stdout) == expected
    assert said_by_ptq(outcome) == []


BATCHES = """\
import os, signal, time

import numpy as np


def one_is_nan():
    for number in range(30):
        x = np.ones((2, 3, 8, 8), np.float32)
        x[1] = np.nan if number == 4 else number
        yield x
        time.sleep(0.05 if os.environ.get("RANK") != "1" else 0)


def one_is_killed():
    for number in range(4000):
        if number == 40 and os.environ.get("RANK") == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        yield np.ones((2, 3, 8, 8), np.float32)
        time.sleep(0.01)


def never_the_same():
    for number in range(9 if os.environ.get("RANK") == "1" else 3):
        yield np.ones((2, 3, 8, 8), np.float32)
"""
SCRIPT = """\
import ptq_cli
from ptq_cli.cli.main import main

tuned = ptq_cli.tune(
    "model.onnx",
    data="many.npz",
    budget={"sqnr_db": 120.0},
    recover=["ranges"],
    eval_data="eval.npz",
    evaluate=True,
    latency=False,
    run="tuned",
)
assert (tuned.ladder.met, tuned.bytes) == (False, tuned.output.stat().st_size)
assert tuned.evaluation.report.evaluation.samples == 20
report = ptq_cli.evaluate(eval_data="eval.npz", batch_size=3, latency=False).report
assert report.evaluation.samples == 20, "every rank is told of all"
for name in ("first", "second"):
    result = ptq_cli.calibrate("model.onnx", data="calib.npz", batch_size=2, run=name)
    assert result.samples == 12, "every rank is told of all"
    assert (result.run.path / "recipe.toml").is_file(), "and finds what the first has written"
# Two batches: the third rank has none.
try:
    words = "calibrate model.onnx --data calib.npz --set data.batch_size=7 --samples 11"
    main(words.split())
except SystemExit as end:
    assert end.code == 0
# Last: gloo may wait for ever where ranks meet again after an error.
try:
    ptq_cli.calibrate("model.onnx", data="missing.npz")
except ptq_cli.PtqError as error:
    assert error.code == "PTQ-FILE-001"
    print("refused", flush=True)
"""
NAN = "error PTQ-DATA-008: input 'x' holds nan at [0, 0, 0] of sample "
KILLED = "error PTQ-RANKS-001: torchrun is ending this command: another process"
OTHER_DATA = "error PTQ-MERGE-001: shard 1 of 2 has seen "
FAILURES = [("one_is_nan", NAN, 2), ("never_the_same", OTHER_DATA, 2), ("one_is_killed", KILLED, -9)]


@pytest.mark.nightly
def test_a_script_calibrates_several_times(folder: Path, ptq: Any, launch: Launch) -> None:
    assert ptq("calibrate model.onnx --data calib.npz --set data.batch_size=2 --run one").status == 0
    few = "calibrate model.onnx --data calib.npz --set data.batch_size=7 --samples 11 --run few"
    assert ptq(few).status == 0
    assert ptq("evaluate --eval-data eval.npz --set data.batch_size=3").status == 0
    report = read_report(folder / "ptq-run")
    (folder / "ptq-run/report.json").write_text("{}")
    np.savez(folder / "many.npz", **make_arrays(90, seed=5))
    tune = "tune model.onnx --data many.npz --budget sqnr_db=120 --eval-data eval.npz"
    tune += " --set recovery.rungs=ranges"
    assert ptq(f"{tune} --run one-tuned").status == 3
    (folder / "script.py").write_text(SCRIPT)
    outcome = launch("script.py")
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.count("refused") == 3
    assert read_report(folder / "ptq-run") == report
    assert read_report(folder / "tuned") == read_report(folder / "one-tuned")
    for name in (*FILES, "tune.json", "model_int8.onnx"):
        assert (folder / "tuned" / name).read_bytes() == (folder / "one-tuned" / name).read_bytes(), name
    assert not (folder / "tuned/tune.partial.json").exists()
    assert outcome.stdout.count("wrote ptq-run/calibration.safetensors") == 1
    assert said_by_ptq(outcome) == ["next: ptq export --onnx"]
    assert read(folder / "ptq-run")[FILES[0]] == read(folder / "few")[FILES[0]]
    assert read(folder / "first") == read(folder / "second") == read(folder / "one")
    for run in ("first", "second"):
        assert sorted(path.name for path in (folder / run).iterdir()) == sorted(FILES)


@pytest.mark.nightly
@pytest.mark.parametrize(("data", "says", "status"), FAILURES)
def test_an_error_of_one_is_said_once_and_ends_all(folder, launch, data, says, status):
    (folder / "data.py").write_text(BATCHES)
    before = {path.name: path.read_bytes() for path in (folder / "ptq-run").iterdir()}
    words = f"-m ptq_cli calibrate model.onnx --data data.py:{data} --set data.batch_size=2"
    outcome = launch(*words.split(), processes=2)
    assert outcome.returncode != 0
    error, hint = said_by_ptq(outcome)
    assert error.startswith(says), outcome.stderr
    assert hint.startswith("hint: ")
    assert "Traceback (most recent call last)" not in outcome.stderr.partition("failed (exitcode")[0]
    assert outcome.stdout == ""
    assert {path.name: path.read_bytes() for path in (folder / "ptq-run").iterdir()} == before
    assert f"exitcode  : {status} " in outcome.stderr.partition("Root Cause")[2]


RANK = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


@pytest.fixture
def ranked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set the variables as torchrun does."""

    def call(**changes: str) -> None:
        for name, value in {**RANK, **changes}.items():
            monkeypatch.setenv(name, value)

    return call


def test_what_is_the_work_of_one_is_refused(refuse, ranked):
    ranked()
    for command in ("export", "quantize model.onnx --data calib.npz", "inspect"):
        verb = command.partition(" ")[0]
        says = f"torchrun started 3 processes, and ptq {verb} runs as a single process"
        refuse(command, "PTQ-USAGE-001", says, hint="without it")
    for command in ("calibrate model.onnx --data calib.npz", "evaluate"):
        refuse(f"{command} --shard 1/2", "PTQ-USAGE-001", "one shard runs as a single process")
    ranked(RANK="3")
    words = "calibrate model.onnx --data calib.npz"
    refuse(words, "PTQ-RANKS-001", "RANK=3, WORLD_SIZE=3", hint="unset RANK")


def test_one_process_under_torchrun_is_one_process(folder, ptq, ranked):
    ranked(RANK="0", WORLD_SIZE="1")
    assert ptq("export").status == 0
