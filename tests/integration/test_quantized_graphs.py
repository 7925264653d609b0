"""Models as exporters write them, through preparation and quantization, judged by what ONNX Runtime runs."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ptq_cli.core.tensors import Array
from ptq_cli.models.preparing.prepare_graph import prepare, prepare_model
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.runtime.engine_registry import count_kernels
from tests.unit.plan.graphs import build, quantized, run, sample, serialized, sqnr_db

SEEDS = range(100)


def judge(
    model: ir.Model, kernels: dict[str, int], inputs: dict[str, Array] | None = None, least: float = 30
) -> ir.Model:
    """Quantize a model, and hold it to the float one and to its integer kernels; return it."""
    before, given = serialized(model), inputs or sample(model, seed=5)
    after = quantized(prepare(model, "m.onnx"), seeds=SEEDS)
    onnx.checker.check_model(ir.to_proto(after), full_check=True)
    counts = count_kernels(serialized(after))
    assert {op: count for op, count in counts.integer.items() if count} == kernels
    for optimize in (False, True):
        found = run(after, given, optimize=optimize)
        for wanted, got in zip(run(before, given), found, strict=True):
            assert got.dtype == wanted.dtype
            if wanted.dtype.kind == "f":
                assert sqnr_db(wanted, got) > least
            else:
                np.testing.assert_array_equal(got, wanted)
    return after


WORDS = """(int64[B,S] ids, bool[B,S] keep, float[B,4] x, int32[B] n)
    => (float[B,S,4] y, int64[B] count, int32[B] next, bool[B,S] same, float[B,8] z)
    <float[16,8] table, float[8,4] w, float[4,8] u, int32[1] one, float zero> {
    rows = Gather(table, ids)
    h = MatMul(rows, w)
    a = Constant<value = int64[1] {-1}>()
    k = Unsqueeze(keep, a)
    y = Where(k, h, zero)
    b = Constant<value = int64[1] {1}>()
    i = Cast<to = 7>(keep)
    count = ReduceSum<keepdims = 0>(i, b)
    next = Add(n, one)
    f = Not(keep)
    same = Not(f)
    z = MatMul(x, u) }"""
CONSTANTS = {"one": np.ones(1, np.int32), "zero": np.zeros((), np.float32)}


@pytest.mark.parametrize("sizes", [(1, 1), (4, 6), (7, 3)], ids=str)
def test_inputs_and_outputs_of_any_number_type_and_size(sizes: tuple[int, int]) -> None:
    batch, length = sizes
    random = np.random.default_rng(batch)
    inputs: dict[str, Array] = {
        "ids": random.integers(0, 2, (batch, length)),
        "keep": random.integers(0, 2, (batch, length)).astype(bool) | True,
        "x": random.standard_normal((batch, 4)).astype(np.float32),
        "n": random.integers(0, 9, batch).astype(np.int32),
    }
    after = judge(build(WORDS, constants=CONSTANTS), {"MatMul": 2}, inputs)
    assert [value.name for value in after.graph.inputs] == ["ids", "keep", "x", "n"]
    assert [value.name for value in after.graph.outputs] == ["y", "count", "next", "same", "z"]
    assert [str(size) for size in after.graph.inputs[0].shape or ()] == ["B", "S"]


def test_pairs_that_are_there_are_kept_and_said_so() -> None:
    text = """(float[N,4] x) => (float[N,4] y) <float s, uint8 z, int8[4,4] w, float ws, float[4,4] u> {
        q = QuantizeLinear(x, s, z)
        d = DequantizeLinear(q, s, z)
        wd = DequantizeLinear(w, ws)
        h = MatMul(d, wd)
        r = Relu(h)
        y = MatMul(r, u) }"""
    constants: dict[str, Array] = {
        "s": np.array(0.05, np.float32),
        "z": np.array(128, np.uint8),
        "w": np.arange(-8, 8, dtype=np.int8).reshape(4, 4),
        "ws": np.array(0.1, np.float32),
    }
    model = build(text, constants=constants)
    before = serialized(model)
    prepared = prepare_model(model, "m.onnx")
    assert prepared.notes == ("3 nodes already quantize or dequantize, and are kept as they are",)
    plan = make_plan(prepared.model, load_target("ort-cpu"))
    reasons = {layer.name: layer.reason for layer in plan.layers}
    assert reasons["h"] == "already quantized: 'd' comes from DequantizeLinear 'd'"
    assert ([site.node for site in plan.weights], list(plan.activations)) == (["y"], ["r"])
    after = quantized(prepared.model, seeds=SEEDS)
    found = {name: value.const_value.numpy() for name, value in after.graph.initializers.items()}
    np.testing.assert_array_equal(found["w"], constants["w"])
    assert found["u.quantized"].dtype == np.int8
    assert count_kernels(serialized(after)).integer["MatMul"] == 2
    inputs = sample(model, seed=5)
    assert sqnr_db(run(before, inputs, optimize=False)[0], run(after, inputs, optimize=False)[0]) > 30
