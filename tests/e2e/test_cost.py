"""What a calibration costs: little for each tensor, and no more memory than it may have."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from ptq_cli.collectors.calibration_file import load_calibration, statistics_digest
from tests.graphs import parsed

COST = """
import re, sys, time
from ptq_cli.cli.main import run
status = run(sys.argv[1:])
peak = re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read()).group(1)
print("cost", time.process_time(), int(peak) * 1024, file=sys.stderr)
sys.exit(status)
"""
TENSORS, WIDTH = 1_000, 8

# By day ``test_linear_growth.py`` counts calls, and ``test_memory_plan.py`` plans below a limit.
pytestmark = pytest.mark.nightly


def calibrate(folder: Path, words: str) -> tuple[subprocess.CompletedProcess[str], float, int]:
    """Return the process, the seconds of processor time, and the peak of memory in bytes."""
    command = [sys.executable, "-c", COST, "calibrate", "model.onnx", "--data", "x.npy", *words.split()]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    found = re.search(r"cost ([0-9.]+) (\d+)", done.stderr)
    assert found, done.stderr
    return done, float(found.group(1)), int(found.group(2))


def save(folder: Path, graph: str, weights: list[np.ndarray], x: np.ndarray) -> None:
    constants = {f"w{at}": each.astype(np.float32) for at, each in enumerate(weights)}
    onnx.save(parsed(graph, constants, opset=20, ir_version=10), folder / "model.onnx")
    np.save(folder / "x.npy", x.astype(np.float32))


def save_chain(folder: Path, layers: int) -> None:
    """A chain of matrix multiplications, each with a tensor of its own to measure; its values stay near 1."""
    random = np.random.default_rng(9)
    weights = [np.linalg.qr(random.normal(size=(WIDTH, WIDTH)))[0] for _ in range(layers)]
    nodes = "".join(f"t{at + 1} = MatMul(t{at}, w{at}) " for at in range(layers))
    graph = f"(float[n,{WIDTH}] t0) => (float[n,{WIDTH}] t{layers}) {{ {nodes} }}"
    save(folder, graph, weights, random.normal(size=(64, WIDTH)))


def test_many_tensors_take_little_each(tmp_path: Path) -> None:
    save_chain(tmp_path, 1)
    one, seconds_of_one, bytes_of_one = calibrate(tmp_path, "--set data.batch_size=16 --run one")
    save_chain(tmp_path, TENSORS)
    many, seconds, peak = calibrate(tmp_path, "--set data.batch_size=16 --run many")
    assert one.returncode == many.returncode == 0, many.stderr
    found = load_calibration(tmp_path / "many/calibration.safetensors").statistics
    assert len(found) == TENSORS
    assert all(item.count == 64 * WIDTH and item.high > item.low for item in found.values())
    assert peak - bytes_of_one < 160_000 * TENSORS
    assert seconds - seconds_of_one < 0.015 * TENSORS


def test_the_peak_stays_below_the_least_that_is_possible(tmp_path: Path) -> None:
    """Of a model whose tensors are large beside its weights: 12 of 4 MB for each sample."""
    random = np.random.default_rng(3)
    weights = [random.normal(0, 0.2, (16, 16 if at else 4, 1, 1)) for at in range(6)]
    nodes = "".join(f"c{at} = Conv(r{at}, w{at}) r{at + 1} = Relu(c{at}) " for at in range(6))
    graph = f"(float[n,4,256,256] r0) => (float[n,16,256,256] r6) {{ {nodes} }}"
    save(tmp_path, graph, weights, random.normal(size=(10, 4, 256, 256)))
    words = "--set data.batch_size=8 --set runtime.threads=2 --run"
    free, *_ = calibrate(tmp_path, f"{words} free")
    assert free.returncode == 0, free.stderr
    low, *_ = calibrate(tmp_path, f"{words} low --set runtime.max_memory=1MiB")
    assert low.returncode == 2
    assert "PTQ-RUNTIME-002: 1.05 MB of memory is not enough" in low.stderr
    least = int(re.search(r"hint: --set runtime.max_memory=(\d+)MiB", low.stderr).group(1)) + 5
    low, _, peak = calibrate(tmp_path, f"{words} low --set runtime.max_memory={least}MiB")
    assert low.returncode == 0, low.stderr
    said = low.stderr + low.stdout
    plan = r"note: below \d+ MB of memory: \d+ tensors in \d+ passes, pieces of 1 sample, one run"
    skipped = r"note: equalize changed nothing: it takes up to about \d+ MB of memory, and 'runtime.max"
    assert re.search(plan, said) and re.search(skipped, said)
    assert peak <= least * 2**20
    digests = [
        statistics_digest(load_calibration(tmp_path / run / "calibration.safetensors").statistics)
        for run in ("free", "low")
    ]
    assert digests[0] == digests[1]
