"""Each operator is found again in what ONNX Runtime makes of a graph, and its kernels are counted.

A model that is opened for each batch computes what an open one does.
"""

from pathlib import Path

import numpy as np

from ptq_cli.models.files.stored import read_model
from ptq_cli.runtime.engine import Kernel
from ptq_cli.runtime.engine_registry import ReopenedModel, find_kernels
from ptq_cli.runtime.session import Session
from tests.large_models import write_large
from tests.unit.plan.cases.tables import CASES
from tests.unit.plan.graphs import build, quantized


def kernels(name: str) -> dict[str, Kernel]:
    return dict(find_kernels(quantized(build(CASES[name].graph))))


def test_a_conv_with_a_relu_is_one_integer_kernel():
    found = kernels("conv_relu")
    assert found["c"] == Kernel("integer", "QLinearConv")
    assert found["y"] == Kernel("gone")


def test_what_moves_integers_is_integer_and_what_moves_floats_is_not():
    assert kernels("max_pool")["a"] == Kernel("integer", "NhwcMaxPool")
    model = quantized(
        build("""(float[N,4] x) => (float[4,N] y) <float[4,4] w> { m = MatMul(x, w) s = Sin(m)
        y = Transpose<perm=[1,0]>(s) }""")
    )
    assert find_kernels(model)["y"] == Kernel("float", "Transpose")


def test_names_that_look_like_others_are_no_trouble():
    graph = """(float[N,3,8,8] x) => (float[N,4,4,4] y)
        <float[4,3,3,3] w, float[4,4,3,3] v> { c = Conv(x, w) r = Relu(c) y = Conv(r, v) }"""
    model = quantized(build(graph))
    ops = [node for node in model.graph if node.op_type in ("Conv", "Relu")]
    for node, name in zip(ops, ("node1.", "node10.", "node1._token_2"), strict=True):
        node.name = name
    found = find_kernels(model)
    assert [found[node.name].name for node in ops] == ["QLinearConv", "", "QLinearConv"]


def test_what_moves_the_second_part_of_a_split_is_integer_too():
    graph = """(float[4,4] x) => (float[4,3] y) <float[4,3] v, int64[2] k = {2, 2}> {
        a, b = Split<axis=1>(x, k) t = Transpose<perm=[1,0]>(b) s = MatMul(a, t) y = MatMul(s, v) }"""
    found = find_kernels(quantized(build(graph, constants={"k": np.array([2, 2])})))
    assert found["t"] == Kernel("integer", "Transpose")


def test_every_batch_gives_what_an_open_session_gives(tmp_path: Path) -> None:
    write_large(tmp_path / "m.onnx", width=16, layers=3)
    model = read_model(tmp_path / "m.onnx")
    session, reopened = Session(model, threads=1), ReopenedModel(model, threads=1)
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((seed + 1, 16)).astype(np.float32)
        np.testing.assert_array_equal(reopened.run({"x": x})[0], session.run({"x": x})[0])
