"""Weights that several nodes read are quantized once, and are one constant afterwards."""

import numpy as np
import onnx
import onnx_ir as ir

from ptq_cli.core.tensors import Array
from ptq_cli.models.preparing.prepare_graph import prepare
from ptq_cli.runtime.engine_registry import count_kernels
from ptq_cli.runtime.session import Session
from ptq_cli.runtime.tapping.taps import tap
from tests.each_case import each_case
from tests.unit.plan.graphs import build, quantized, run, sample, serialized, sqnr_db

ROWS, WIDTH = 16, 8
LAYER = "h = MatMul(g, w)\n r = Relu(h)"
TIED = {
    "two MatMuls": (
        """(float[N,8] x) => (float[N,8] y) <float[8,8] w> {
        h = MatMul(x, w)\n r = Relu(h)\n y = MatMul(r, w) }""",
        "w",
        {"MatMul": 2},
    ),
    "biases of their own": (
        """(float[N,8] x) => (float[N,8] y) <float[8,8] w, float[8] b, float[8] c> {
        h = MatMul(x, w)\n a = Add(h, b)\n r = Relu(a)\n k = MatMul(r, w)\n y = Add(k, c) }""",
        "w",
        {"Gemm": 2},
    ),
    "a table, turned for a MatMul": (
        f"""(int64[N,S] i) => (float[N,S,16] y) <float[16,8] e, float[8,8] w> {{
        g = Gather(e, i)\n {LAYER}\n t = Transpose<perm=[1,0]>(e)\n y = MatMul(r, t) }}""",
        "e",
        {"MatMul": 2},
    ),
    "a table and a Gemm": (
        f"""(int64[N] i) => (float[N,16] y) <float[16,8] e, float[8,8] w> {{
        g = Gather(e, i)\n {LAYER}\n y = Gemm<transB=1>(r, e) }}""",
        "e",
        {"MatMul": 1, "Gemm": 1},
    ),
    "a table of several Gathers, one an output": (
        f"""(int64[N,S] i, int64[N] j) => (float[N,S,16] y, float[N,8] z) <float[16,8] e, float[8,8] w> {{
        z = Gather(e, j)\n g = Gather<axis=0>(e, i)\n {LAYER}\n t = Transpose<perm=[1,0]>(e)
        y = MatMul(r, t) }}""",
        "e",
        {"MatMul": 2},
    ),
    "a bias beside the table": (
        f"""(int64[N,S] i) => (float[N,S,16] y) <float[16,8] e, float[8,8] w, float[16] b> {{
        g = Gather(e, i)\n {LAYER}\n t = Transpose<perm=[1,0]>(e)\n k = MatMul(r, t)\n y = Add(k, b) }}""",
        "e",
        {"MatMul": 2},
    ),
}


def matrices(model: ir.Model, name: str) -> dict[str, ir.DataType | None]:
    shapes = {(ROWS, WIDTH), (WIDTH, ROWS)} if name == "e" else {(WIDTH, WIDTH)}
    values = model.graph.initializers.items()
    return {key: value.dtype for key, value in values if tuple(value.const_value.shape.numpy()) in shapes}


@each_case("case", TIED)
def test_one_constant_of_integers_serves_all(case: str) -> None:
    text, name, kernels = TIED[case]
    model = build(text)
    before = serialized(model)
    prepared = prepare(model, "m.onnx")
    after = quantized(prepared, seeds=range(100))
    onnx.checker.check_model(ir.to_proto(after), full_check=True)
    assert matrices(after, name) == {f"{name}.quantized": ir.DataType.INT8}
    counts = count_kernels(serialized(after))
    assert {op: count for op, count in counts.integer.items() if count} == kernels
    assert not any(counts.floating.values())
    inputs = sample(model, seed=5)
    for optimize in (False, True):
        for wanted, found in zip(run(before, inputs), run(after, inputs, optimize=optimize), strict=True):
            assert sqnr_db(wanted, found) > 30


TABLES = [case for case, (_, name, _) in TIED.items() if name == "e"]


@each_case("case", TABLES)
def test_rows_are_to_the_bit_what_the_layer_reads(case: str) -> None:
    prepared = prepare(build(TIED[case][0]), "m.onnx")
    after = quantized(prepared)
    layer = next(node for node in after.graph if node.name == ("k" if "bias" in case else "y"))
    weight = next(value for value in layer.inputs[1:] if value.producer().op_type == "DequantizeLinear")
    opened = Session(tap(after, [weight.name, "g"]), threads=1, optimize=False)
    for seed in range(3):
        inputs = sample(prepared, seed)
        inputs["i"] = np.random.default_rng(seed).integers(-ROWS, ROWS, inputs["i"].shape)
        table, rows = opened.run(inputs)
        table = table if case == "a table and a Gemm" else table.T
        assert table.shape == (ROWS, WIDTH)
        np.testing.assert_array_equal(rows, table[inputs["i"]])


def test_the_widest_scale_that_a_bias_needs_holds_for_all() -> None:
    text, _, _ = TIED["biases of their own"]
    constants: dict[str, Array] = {
        "w": (np.eye(8) * 1e-4).astype(np.float32),
        "b": np.zeros(8, np.float32),
        "c": np.full(8, 3e4, np.float32),
    }
    prepared = prepare(build(text, constants=constants), "m.onnx")
    after = quantized(prepared)
    assert matrices(after, "w") == {"w.quantized": ir.DataType.INT8}
    inputs = sample(prepared, seed=5)
    assert sqnr_db(run(prepared, inputs)[0], run(after, inputs)[0]) > 40


APART = {
    "another reader": (
        f"""(int64[N,S] i, float[1] f) => (float[N,S,16] y, float[16,8] z) <float[16,8] e, float[8,8] w> {{
        z = Mul(e, f)\n g = Gather(e, i)\n {LAYER}\n t = Transpose<perm=[1,0]>(e)
        y = MatMul(r, t) }}""",
        {"e": ir.DataType.FLOAT},
    ),
    "columns are taken": (
        """(int64[N,S] i, float[N,16] x) => (float[16,N,S] g, float[N,8] y) <float[16,8] e> {
        g = Gather<axis=1>(e, i)\n y = MatMul(x, e) }""",
        {"e": ir.DataType.FLOAT, "e.quantized": ir.DataType.INT8},
    ),
    "another matrix": (
        f"""(int64[N,S] i) => (float[N,S,16] y) <float[16,8] e, float[8,8] w, float[8,16] t> {{
        g = Gather(e, i)\n {LAYER}\n y = MatMul(r, t) }}""",
        {"e": ir.DataType.FLOAT, "t.quantized": ir.DataType.INT8},
    ),
    "no layer": (
        f"(int64[N,S] i) => (float[N,S,8] r) <float[16,8] e, float[8,8] w> {{ g = Gather(e, i)\n {LAYER} }}",
        {"e": ir.DataType.FLOAT},
    ),
}


@each_case("case", APART)
def test_a_table_that_is_no_weight_stays_as_it_is(case: str) -> None:
    text, expected = APART[case]
    model = build(text)
    before = serialized(model)
    prepared = prepare(model, "m.onnx")
    after = quantized(prepared, seeds=range(100))
    found = matrices(after, "e")
    assert {name: found.get(name) for name in expected} == expected
    inputs = sample(model, seed=5)
    for wanted, got in zip(run(before, inputs), run(after, inputs), strict=True):
        assert sqnr_db(wanted, got) > 30
