"""Ctrl-C or SIGTERM at any moment: status 130 or 143, and the outputs are all as they were, or all new."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

import ptq_cli
from ptq_cli.core.progress import Progress
from tests.e2e.conftest import snapshot

# A shell that starts the tests in the background has SIGINT ignored, and children inherit that.
START = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); \
from ptq_cli.cli.main import main; main()"
WAIT = """\
import sys
import time

import numpy as np


def wait():
    print("READY", file=sys.stderr, flush=True)
    time.sleep(3600)


def batches():
    yield {"x": np.ones((4, 3, 8, 8), np.float32), "label": np.zeros(4, int)}
    wait()


def build():
    wait()
"""
QUANTIZE = "quantize model.onnx --data calib.npz --eval-data eval.npz --set run.evaluate=true --samples 5"

HINT = "hint: run the same command again: it continues from its last checkpoint, if there is one\n"
MOMENTS = [
    ("calibrate model.onnx --data wait.py:batches", signal.SIGINT),
    ("quantize model.onnx --data wait.py:batches", signal.SIGTERM),
    *(
        pytest.param(words, signal.SIGINT, marks=pytest.mark.nightly)
        for words in (
            "calibrate model.pt --arch wait.py:build --data calib.npz",
            "evaluate --eval-data wait.py:batches",
            "analyze --eval-data wait.py:batches",
        )
    ),
]


@pytest.mark.parametrize(("words", "number"), MOMENTS)
def test_a_signal_leaves_the_earlier_outputs(folder, words, number):
    if "model.pt" in words:
        pytest.importorskip("torch")
    (folder / "wait.py").write_text(WAIT)
    before = snapshot(folder)
    command = [sys.executable, "-c", START, *words.split()]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        said = []
        for line in process.stderr:
            said.append(line)
            if line == "READY\n":
                process.send_signal(number)
        out = process.stdout.read() if process.stdout else ""
    assert process.returncode == 128 + number, "".join(said)
    cause = " by SIGTERM" if number == signal.SIGTERM else ""
    hint = [] if words.startswith("analyze") else [HINT]  # It has no checkpoints.
    assert said[said.index("READY\n") + 1 :] == [
        f"interrupted{cause}; earlier outputs are unchanged\n",
        *hint,
    ]
    assert "Traceback" not in "".join(said)
    assert out == ""
    assert snapshot(folder) == before


def interrupt(*_args: object, **_options: object) -> NoReturn:
    raise KeyboardInterrupt


STAGES = ("resolve", "open_subject", "fit_evaluation", "make_calibration", "make_export", "make_evaluations")


@pytest.mark.parametrize("stage", [*STAGES, "write_together"])
def test_an_interrupt_in_any_stage_of_quantize_changes_nothing(folder, ptq, monkeypatch, stage):
    before = snapshot(folder)
    monkeypatch.setattr(f"ptq_cli.pipeline.run_quantize.{stage}", interrupt)
    outcome = ptq(QUANTIZE)
    assert (outcome.status, outcome.out) == (130, "")
    assert outcome.err == f"interrupted; earlier outputs are unchanged\n{HINT}"
    assert snapshot(folder) == before


def test_an_interrupt_in_a_progress_callback_reaches_the_caller(folder: Path) -> None:
    before = snapshot(folder)

    def stop(progress: Progress) -> None:
        if progress.done >= 8:
            raise KeyboardInterrupt

    for verb, settings in (
        (ptq_cli.calibrate, {"model": "model.onnx", "data": "calib.npz", "batch_size": 4}),
        (ptq_cli.evaluate, {"eval_data": "eval.npz", "batch_size": 4}),
    ):
        with pytest.raises(KeyboardInterrupt):
            verb(progress=stop, **settings)  # type: ignore[operator]
    assert snapshot(folder) == before
