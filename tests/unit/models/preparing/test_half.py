"""Models in float16 are computed in float32: the same weights, inputs and outputs, integer kernels."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ptq_cli.core.tensors import Array
from ptq_cli.models.files import storing
from ptq_cli.models.loading.onnx_source import load_onnx
from ptq_cli.models.preparing.prepare_graph import prepare, prepare_model
from ptq_cli.runtime.engine_registry import count_kernels
from tests.each_case import each_case
from tests.unit.models.contents import noise, operators
from tests.unit.plan.graphs import build, quantized, run, sample, serialized, sqnr_db

HALF = ir.DataType.FLOAT16
WEIGHTS: dict[str, Array] = {
    "w": noise(8, 3, 3, 3).astype(np.float16) / np.float16(5),
    "s": np.array([1, 0.5, 2, 1] * 2, np.float16),
    "v": np.array([1, 2, 3, 4] * 2, np.float16),
    "f": noise(8, 5).astype(np.float16),
}
CONVOLUTION = """(float16[N,3,8,8] x) => (float16[] y)
    <float16[8,3,3,3] w, float16[8] s, float16[8] v, float16[8,5] f> {
    c = Conv(x, w)
    d = BatchNormalization(c, s, s, s, v)
    e = Cast<to=1>(d)
    g = Cast<to=10>(e)
    r = Relu(g)
    p = GlobalAveragePool(r)
    q = Flatten(p)
    y = MatMul(q, f) }"""


def test_a_float16_model_is_integer_with_its_own_inputs_and_outputs() -> None:
    model = build(CONVOLUTION, constants=WEIGHTS)
    before = serialized(model)
    prepared = prepare_model(model, "m.onnx")
    assert prepared.notes == (
        "float16 is computed in float32: weights keep their values, inputs and outputs their type",
    )
    after = prepared.model
    assert operators(after) == ["Cast", "Conv", "Relu", "GlobalAveragePool", "Reshape", "MatMul", "Cast"]
    assert [value.dtype for value in (*after.graph.inputs, *after.graph.outputs)] == [HALF, HALF]
    assert [value.name for value in (*after.graph.inputs, *after.graph.outputs)] == ["x", "y"]
    integers = quantized(after)
    counts = count_kernels(serialized(integers))
    assert (counts.integer["Conv"], counts.integer["MatMul"]) == (1, 1)
    inputs = sample(model, seed=2)
    expected = run(before, inputs)[0]
    wide, narrow = run(after, inputs)[0], run(integers, inputs)[0]
    assert expected.dtype == wide.dtype == narrow.dtype == np.float16
    np.testing.assert_allclose(wide, expected, rtol=1e-2, atol=1e-2)
    assert sqnr_db(wide, narrow) > 30


def test_bfloat16_is_computed_in_float32_too() -> None:
    text = """(float[N,8] x) => (bfloat16[N,5] y, float[N,5] z) <bfloat16[8,5] f> {
        h = Cast<to=16>(x)
        y = MatMul(h, f)
        z = Cast<to=1>(y) }"""
    weight = noise(8, 5).astype(ir.DataType.BFLOAT16.numpy())
    model = build(text, constants={"f": weight})
    prepared = prepare_model(model, "m.onnx")
    assert prepared.notes[0].startswith("bfloat16 is computed in float32")
    after = prepared.model
    assert prepared.notes[0].endswith("become float32, because numpy has no bfloat16")
    assert [value.name for value in after.graph.outputs] == ["y", "z"]
    for found in run(after, {"x": noise(2, 8)}):
        np.testing.assert_allclose(found, noise(2, 8) @ weight.astype(np.float32), rtol=1e-5, atol=1e-6)
    assert quantized(after).graph.num_nodes() > after.graph.num_nodes()


def test_weights_keep_their_values_to_the_bit() -> None:
    text = "(float16[N,8] x) => (float16[N,5] y) <float16[8,5] f> { y = MatMul(x, f) }"
    after = prepare(build(text, constants={"f": WEIGHTS["f"]}), "m.onnx")
    found = after.graph.initializers["f"].const_value.numpy()
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, WEIGHTS["f"].astype(np.float32))
    # Products of float16 are exact in float32, and a sum of one rounds but once, at the output.
    one = np.eye(8, dtype=np.float16)
    np.testing.assert_array_equal(run(after, {"x": one})[0], WEIGHTS["f"])


# A number of float16 is written as its bits.
INSIDE = {
    "a branch": """(float16[N,4] x, bool c) => (float16[N,4] y) <float16[4,4] w> {
        h = MatMul(x, w)
        y = If(c) <then_branch = t () => (float16[N,4] a) { a = Add(h, x) },
            else_branch = e () => (float16[N,4] b) { k = Constant<value = float16[1] {16384}>()
                b = Mul(h, k) }> }""",
    "a loop": """(float16[N,4] x) => (float16[N,4] y) <float16[4,4] w> {
        h = MatMul(x, w)
        n = Constant<value = int64 {2}>()
        k = Constant<value = bool {1}>()
        y = Loop(n, k, h) <body = b (int64 i, bool ci, float16[N,4] s) => (bool co, float16[N,4] t) {
            co = Identity(ci)
            t = Add(s, h) }> }""",
    "types in attributes": """(float16[N,4] x) => (float16[N,4] y, float z) <float16[4,4] w> {
        h = MatMul(x, w)
        s = Shape(h)
        o = ConstantOfShape<value = float16[1] {14336}>(s)
        r = RandomUniformLike<dtype = 10, low = 0.0, high = 0.0, seed = 1.0>(h)
        t = Add(h, o)
        y = Add(t, r)
        u = Cast<to = 1>(t)
        z = ReduceSum<keepdims = 0>(u) }""",
    "a scalar": """(float16[N,4] x) => (float16[N,4] y) <float16[4,4] w, float16 s> {
        h = MatMul(x, w)
        k = Constant<value = float16 {15872}>()
        m = Mul(h, k)
        y = Add(m, s) }""",
    "an output that is read on": """(float16[N,4] x) => (float16[N,4] h, float16[N,4] y) <float16[4,4] w> {
        h = MatMul(x, w)
        y = Relu(h) }""",
}


@each_case("case", INSIDE)
def test_what_is_nested_or_named_in_attributes_is_widened_too(case: str) -> None:
    model = build(INSIDE[case], constants={"w": noise(4, 4).astype(np.float16), "s": np.array(2, np.float16)})
    before = serialized(model)
    kinds = [value.dtype for value in model.graph.outputs]
    after = prepare(model, "m.onnx")
    assert [value.dtype for value in after.graph.outputs] == kinds
    inner = [value for node in after.graph.all_nodes() if node.op_type != "Cast" for value in node.outputs]
    assert HALF not in {value.dtype for value in inner}
    inputs = sample(model, seed=1)
    for found, wanted in zip(run(after, inputs), run(before, inputs), strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=1e-2, atol=1e-2)


def test_a_large_one_is_widened_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "(float16[N,64] x) => (float16[N,64] y) <float16[64,64] w> { h = MatMul(x, w)\n y = Relu(h) }"
    weight = (noise(64, 64) / 8).astype(np.float16)
    proto = ir.to_proto(build(text, constants={"w": weight}))
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
    monkeypatch.setattr(storing, "LARGEST_BYTES", 1000)
    monkeypatch.setattr(storing, "SMALLEST_EXTERNAL", 1000)
    graph = prepare(load_onnx(tmp_path / "m.onnx"), "m.onnx")
    assert isinstance(graph.graph.initializers["w"].const_value, ir.LazyTensor)
    found = storing.store_model(graph, tmp_path, "p.onnx")
    assert found.data[0].read_bytes() == weight.astype(np.float32).tobytes()
