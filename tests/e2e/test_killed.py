"""A process that is killed at random moments continues, and ends with the bytes of one that was not."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

CHECKPOINT = "calibration.partial.safetensors"
FILES = ("calibration.safetensors", "model.float.onnx", "recipe.toml")
BATCHES = 60
WORDS = "calibrate model.onnx --data slow.py:batches --recover none --set data.batch_size=4"
SLOW_DATA = f"""\
import time
from pathlib import Path

import numpy as np


def batches():
    x = np.load("calib.npz")["x"]
    end = int(Path("end").read_text())
    for turn in range({BATCHES}):
        if turn == end:
            time.sleep(3600)
        time.sleep(0.02)
        yield {{"x": x[:4] * (turn + 1)}}
"""


def read(run: Path) -> dict[str, bytes]:
    return {name: (run / name).read_bytes() for name in FILES}


def kill_and_continue(folder: Path, chance: random.Random, kills: int, every: str) -> str:
    """Kill a process so many times, then let it end; return all that was said.

    Each process that is to be killed waits before it is done, so that it is alive however late the kill is.
    """
    words = f"{WORDS} --set runtime.checkpoint_every={every} --run run"
    command = [sys.executable, "-m", "ptq_cli", *words.split()]
    said = ""
    for turn in range(1, kills + 2):
        (folder / "end").write_text(str(BATCHES * turn // (kills + 1)))
        with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
            if turn <= kills:
                wait_for_a_batch(folder / "run" / CHECKPOINT, process)
                time.sleep(chance.uniform(0, 0.5))
                process.send_signal(signal.SIGKILL)
            said += process.communicate()[1]
        assert process.returncode == (-signal.SIGKILL if turn <= kills else 0), said
    return said


def wait_for_a_batch(checkpoint: Path, process: "subprocess.Popen[str]") -> None:
    before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
    while process.poll() is None and (not checkpoint.exists() or checkpoint.stat().st_mtime_ns == before):
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("seed", "every", "kills"),
    [
        (1, "0", 1),
        pytest.param(2, "0.05", 2, marks=pytest.mark.nightly),
        *[pytest.param(seed, "0", 2, marks=pytest.mark.nightly) for seed in range(3, 13)],
    ],
)
def test_a_process_that_is_killed_continues(
    folder: Path, ptq: Any, seed: int, every: str, kills: int
) -> None:
    (folder / "slow.py").write_text(SLOW_DATA)
    (folder / "end").write_text(str(BATCHES))
    words = f"{WORDS} --set runtime.checkpoint_every={every} --run whole"
    assert ptq(words).status == 0
    said = kill_and_continue(folder, random.Random(seed), kills=kills, every=every)
    assert said.count("note: continuing an earlier calibration after ") == kills
    assert read(folder / "run") == read(folder / "whole")
    assert sorted(path.name for path in (folder / "run").iterdir()) == sorted(FILES)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(12))
def test_a_process_that_is_killed_at_any_moment_of_its_life(folder: Path, ptq: Any, seed: int) -> None:
    (folder / "slow.py").write_text(SLOW_DATA)
    (folder / "end").write_text(str(BATCHES))
    words = f"{WORDS} --set runtime.checkpoint_every=0 --run"
    assert ptq(f"{words} whole").status == 0
    chance = random.Random(seed)
    command = [sys.executable, "-m", "ptq_cli", *words.split(), "run"]
    for _ in range(40):
        with subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL) as process:
            try:
                process.wait(chance.uniform(0, 6))
            except subprocess.TimeoutExpired:
                process.kill()
        if process.returncode == 0:
            break
    assert read(folder / "run") == read(folder / "whole")
