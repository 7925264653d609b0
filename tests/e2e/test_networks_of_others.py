"""Networks of a folder go through every command with nothing but data, or are refused for a stated reason.

PTQ_NETWORKS=DIR python -m pytest tests/e2e/test_networks_of_others.py

The folder is laid out as for ``python -m benchmarks.zoo``: NAME/model.onnx, calib.npz and eval.npz.
"""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

VARIABLE = "PTQ_NETWORKS"
# What a network is given besides data, such as ``model.inputs.sr=16000`` for one with an input of rank 0.
WORDS: dict[str, list[str]] = {}
# The code of the error for a network that cannot be quantized, with a line that says why.
REFUSED: dict[str, str] = {}
SAMPLES = "8"
PREPARED = ("export --float model.onnx -o prepared.onnx", "inspect model.onnx")
QUANTIZED = (
    "export",
    f"evaluate --data eval.npz --samples {SAMPLES}",
    "analyze --data eval.npz --samples 4",
    "verify --json",
    "bench --seconds 1",
)
# What no command lets through to the terminal: tracebacks and what libraries say.
OF_OTHERS = ("Traceback", "Warning", "\x1b", "onnxruntime:")


def find_networks() -> list[Path]:
    """Return the folders of networks; none where the variable is not set."""
    folder = os.environ.get(VARIABLE)
    return [path.parent for path in sorted(Path(folder).glob("*/model.onnx"))] if folder else []


def ptq(folder: Path, words: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, and look at what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "ptq_cli", *words], cwd=folder, capture_output=True, text=True, check=False
    )
    said = [text for text in OF_OTHERS if text in done.stdout + done.stderr]
    assert not said, f"{words[0]} lets through {said}: {done.stderr[-2000:]}"
    return done


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not os.environ.get(VARIABLE), reason=f"{VARIABLE} names no folder of networks")
@pytest.mark.parametrize("network", find_networks() or [None], ids=lambda path: path.name if path else "none")
def test_a_network_goes_through_every_command(network: Path | None, tmp_path: Path) -> None:
    assert network is not None, f"the folder of {VARIABLE} has no NAME/model.onnx"
    for name in ("model.onnx", "calib.npz", "eval.npz"):
        (tmp_path / name).symlink_to(network.resolve() / name)
    more, code = WORDS.get(network.name, []), REFUSED.get(network.name)
    for line in PREPARED:
        assert_done(ptq(tmp_path, [*line.split(), *more]), line)
    words = ["calibrate", "model.onnx", "--data", "calib.npz", "--samples", SAMPLES, *more]
    done = ptq(tmp_path, words)
    if code is not None:
        assert done.returncode == 2
        assert f"error {code}: " in done.stderr
        return
    assert_done(done, "calibrate")
    results = {line.split()[0]: assert_done(ptq(tmp_path, line.split()), line) for line in QUANTIZED}
    share = json.loads(results["verify"])["integer_share"]
    report = json.loads((tmp_path / "ptq-run" / "report.json").read_text())
    sqnr = [item["quantized_value"] for item in report["metrics"] if item["name"] == "sqnr_db"]
    assert 0 <= share <= 1
    assert sqnr
    assert all(map(math.isfinite, sqnr))


def assert_done(done: subprocess.CompletedProcess[str], line: str) -> str:
    """Assert that a command ended well, and return its result."""
    assert done.returncode == 0, f"ptq {line}: exit status {done.returncode}\n{done.stderr[-3000:]}"
    return done.stdout
