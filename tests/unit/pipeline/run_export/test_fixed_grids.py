"""A grid that a kernel has built in is in every file, whatever calibration and recovery say."""

from pathlib import Path

import numpy as np
import onnx

import ptq_cli
from tests.unit.plan.graphs import build, serialized

GRAPH = """(float[2,3,8,8] x) => (float[2,5] y) <float[4,3,3,3] v, float[144,16] w, float[16,5] u> {
    [conv] c = Conv(x, v)
    [gate] s = Sigmoid(c)
    [bend] t = Tanh(c)
    product = Mul(s, t)
    flat = Flatten(product)
    [matmul] m = MatMul(flat, w)
    [shares] p = Softmax(m)
    [last] y = MatMul(p, u)
}"""


GRIDS = {"s": (2.0**-8, 0), "t": (2.0**-7, 128), "p": (2.0**-8, 0)}


def test_recovery_changes_no_fixed_grid(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("m.onnx").write_bytes(serialized(build(GRAPH, opset=21)))
    # In a small part of what the three could give, so that each method would choose another grid.
    data = 0.1 * np.random.default_rng(0).normal(size=(16, 3, 8, 8)).astype(np.float32)
    ptq_cli.calibrate("m.onnx", data=data, target="qnn")
    ptq_cli.export(recover=["all"], output="q.onnx")
    graph = onnx.load("q.onnx").graph
    constants = {item.name: onnx.numpy_helper.to_array(item) for item in graph.initializer}
    pairs = {node.input[0]: node.input[1:] for node in graph.node if node.op_type == "QuantizeLinear"}
    found = {name: tuple(constants[it].item() for it in pairs[name]) for name in GRIDS}
    assert found == GRIDS
