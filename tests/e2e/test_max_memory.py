"""``runtime.max_memory``: the peak stays below it, the plan is announced, and the statistics are the same."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ptq_cli.collectors.calibration_file import load_calibration, statistics_digest

# By day ``tests/unit/runtime/tapping/test_memory_plan.py`` has the plan, and other tests run below a limit.
pytestmark = pytest.mark.nightly

PEAK = """
import re, sys
from ptq_cli.cli.main import main
try:
    main()
finally:
    found = re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())
    print("peak", int(found.group(1)) * 1024, file=sys.stderr)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model whose tensors are large beside its weights: 12 of 4 MB for each sample."""
    place = tmp_path_factory.mktemp("wide")
    random = np.random.default_rng(3)
    nodes, constants, last = [], [], "x"
    for index in range(6):
        channels = 4 if index == 0 else 16
        weight = random.normal(0, 0.2, (16, channels, 1, 1)).astype(np.float32)
        constants.append(numpy_helper.from_array(weight, f"w{index}"))
        nodes += [
            helper.make_node("Conv", [last, f"w{index}"], [f"c{index}"], f"conv{index}"),
            helper.make_node("Relu", [f"c{index}"], [f"r{index}"], f"relu{index}"),
        ]
        last = f"r{index}"
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4, 256, 256])
    y = helper.make_tensor_value_info(last, TensorProto.FLOAT, ["n", 16, 256, 256])
    graph = helper.make_graph(nodes, "wide", [x], [y], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, place / "model.onnx")
    np.save(place / "x.npy", random.normal(size=(10, 4, 256, 256)).astype(np.float32))
    return place


def calibrate(folder: Path, run: str, *words: str) -> tuple[int, str]:
    plain = "calibrate model.onnx --data x.npy --set data.batch_size=8 --set runtime.threads=2 --run"
    command = [sys.executable, "-c", PEAK, *plain.split(), run, *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr + done.stdout


def peak(stderr: str) -> int:
    return int(re.search(r"peak (\d+)", stderr).group(1))


@pytest.fixture(scope="module")
def free(folder):
    status, stderr = calibrate(folder, "free")
    assert status == 0, stderr
    return peak(stderr), statistics_digest(
        load_calibration(folder / "free/calibration.safetensors").statistics
    )


def test_the_peak_stays_below_the_least_that_is_possible(folder, free):
    status, stderr = calibrate(folder, "low", "--set", "runtime.max_memory=1MiB")
    assert status == 2
    assert "PTQ-RUNTIME-002: 1.05 MB of memory is not enough" in stderr
    least = re.search(r"hint: --set runtime.max_memory=(\d+)MiB", stderr).group(1)

    status, stderr = calibrate(folder, "low", "--set", f"runtime.max_memory={int(least) + 5}MiB")

    assert status == 0, stderr
    assert re.search(
        r"note: below \d+ MB of memory: \d+ tensors in \d+ passes, pieces of 1 sample, one run", stderr
    )
    assert peak(stderr) <= (int(least) + 5) * 2**20
    assert re.search(
        r"note: equalize changed nothing: it takes up to about \d+ MB of memory, and 'runtime.max", stderr
    )
    found = load_calibration(folder / "low/calibration.safetensors")
    assert statistics_digest(found.statistics) == free[1]
