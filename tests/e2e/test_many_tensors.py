"""A model with thousands of tapped tensors is calibrated in sane time and memory."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ptq_cli.collectors.calibration_file import load_calibration

COST = """
import re, sys, time
from ptq_cli.cli.main import run
status = run(sys.argv[1:])
peak = re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read()).group(1)
print("cost", time.process_time(), int(peak) * 1024, file=sys.stderr)
sys.exit(status)
"""
WIDTH = 8


def write_chain(folder: Path, layers: int) -> None:
    """A chain of matrix multiplications, each with a tensor of its own to measure; its values stay near 1."""
    random = np.random.default_rng(9)
    constants, nodes, last = [], [], "x"
    for index in range(layers):
        matrix, _ = np.linalg.qr(random.normal(size=(WIDTH, WIDTH)))
        constants.append(numpy_helper.from_array(matrix.astype(np.float32), f"w{index}"))
        nodes.append(helper.make_node("MatMul", [last, f"w{index}"], [f"t{index}"], f"n{index}"))
        last = f"t{index}"
    value = helper.make_tensor_value_info
    inputs = [value("x", TensorProto.FLOAT, ["n", WIDTH])]
    outputs = [value(last, TensorProto.FLOAT, ["n", WIDTH])]
    graph = helper.make_graph(nodes, "chain", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, folder / "chain.onnx")
    np.save(folder / "x.npy", random.normal(size=(64, WIDTH)).astype(np.float32))


def cost(folder: Path, words: str) -> tuple[float, int]:
    """Return the seconds of processor time and the peak of memory in bytes of a command."""
    command = [sys.executable, "-c", COST, *words.split()]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = re.search(r"cost ([0-9.]+) (\d+)", done.stderr)
    return float(found.group(1)), int(found.group(2))


@pytest.mark.parametrize("tensors", [150, pytest.param(1_000, marks=pytest.mark.nightly)])
def test_many_tensors_take_little_each(tmp_path: Path, tensors: int) -> None:
    write_chain(tmp_path, 1)
    words = "calibrate chain.onnx --data x.npy --set data.batch_size=16 --run"
    seconds_of_one, bytes_of_one = cost(tmp_path, f"{words} one")
    write_chain(tmp_path, tensors)
    seconds, peak = cost(tmp_path, f"{words} many")
    found = load_calibration(tmp_path / "many/calibration.safetensors").statistics
    assert len(found) == tensors
    assert all(item.count == 64 * WIDTH and item.high > item.low for item in found.values())
    assert peak - bytes_of_one < 160_000 * tensors
    assert seconds - seconds_of_one < 0.015 * tensors
