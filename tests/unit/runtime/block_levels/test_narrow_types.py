"""What ONNX Runtime's optimizer must leave alone, and that it computes the same then."""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from ptq_cli.core.arithmetic import round_to_float
from ptq_cli.core.formats import FLOAT4_E2M1, FLOAT8_E4M3FN
from ptq_cli.models.files.stored import serialize
from ptq_cli.models.graph_reading import FreshNames
from ptq_cli.models.preparing.prepare_graph import prepare
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.write.new_nodes import add_initializer
from ptq_cli.qdq.write.two_level_blocks import dynamic_pair
from ptq_cli.runtime import probes as byte_sums
from ptq_cli.runtime.block_levels import BIAS_QUANTIZATION, LeftOut, decoded, has_four_bits, left_out
from ptq_cli.runtime.probes import know_foreign_types
from ptq_cli.runtime.session import Session
from tests.unit.plan.graphs import build


def model(dtype: int, scale_dtype: type, weight_dtype: int | None = None) -> bytes:
    """Relu, a pair, and a Conv with a bias, whose weight has a DequantizeLinear."""
    zero = helper.make_tensor("z", dtype, [], [0])
    scale = numpy_helper.from_array(np.asarray(0.01, scale_dtype), "s")
    random = np.random.default_rng(0)
    weight = helper.make_tensor("w", weight_dtype or dtype, [4, 3, 1, 1], random.integers(-7, 8, 12).tolist())
    bias = numpy_helper.from_array(np.asarray([0.5, -0.5, 1, 2], scale_dtype), "b")
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "s"], ["v"]),
        helper.make_node("Conv", ["d", "v", "b"], ["y"]),
    ]
    kind = TensorProto.FLOAT16 if scale_dtype is np.float16 else TensorProto.FLOAT
    x, y = (helper.make_tensor_value_info(name, kind, [1, n, 2, 2]) for name, n in (("x", 3), ("y", 4)))
    graph = helper.make_graph(nodes, "g", [x], [y], [zero, scale, weight, bias])
    opsets = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


@pytest.mark.parametrize(
    ("dtype", "scale", "wanted"),
    [
        (TensorProto.INT8, np.float32, LeftOut()),
        (TensorProto.INT8, np.float16, LeftOut((BIAS_QUANTIZATION,))),
        (TensorProto.FLOAT8E4M3FN, np.float32, LeftOut((BIAS_QUANTIZATION,), everything=True)),
    ],
)
def test_it_computes_what_the_file_says(dtype: int, scale: type, wanted: LeftOut) -> None:
    content = model(dtype, scale)
    assert left_out(content) == wanted
    x = np.random.default_rng(1).standard_normal((1, 3, 2, 2)).astype(scale)
    found, written = (
        Session(content, threads=1, optimize=optimize).run({"x": x})[0] for optimize in (True, False)
    )
    assert np.abs(found - written).max() < 2e-3 and np.abs(written).max() > 1


# Whether kernels saturate is found by trying them.


@pytest.fixture(autouse=True)
def tried_again() -> Iterator[None]:
    byte_sums.is_signed_exact.cache_clear()
    yield
    byte_sums.is_signed_exact.cache_clear()


def test_kernels_that_saturate_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    multiplied = byte_sums.multiplied

    def saturating(left, right, left_zero, right_zero):
        found = multiplied(left, right, left_zero, right_zero)
        return np.minimum(found, 32767 * 32) if right.dtype == np.int8 else found

    monkeypatch.setattr(byte_sums, "multiplied", saturating)
    assert not byte_sums.is_signed_exact()


# 4-bit floats in operators that ONNX Runtime has: the numbers are those of our own rounding, bit for bit.


SCALE = np.float32(3.0 / 6 / 448)


def dynamic_model(dtype: ir.DataType) -> ir.Model:
    """One activation that is quantized at each run, and the shape of its 4-bit floats."""
    x = ir.Value(name="x", shape=ir.Shape(["n", 5, 48]), type=ir.TensorType(dtype))
    graph = ir.Graph([x], [], nodes=[], opset_imports={"": 23}, name="g")
    scale = add_initializer(graph, "x.scale", np.asarray(SCALE))
    nodes = dynamic_pair(graph, x, scale, FreshNames.of(graph))
    cast = ir.node("Cast", [nodes[-1].outputs[0]], {"to": ir.DataType.FLOAT}, name="y")
    sizes = [ir.node("Shape", [value], name=f"shape{i}") for i, value in enumerate(nodes[0].outputs)]
    graph.extend([*nodes, cast, *sizes])
    outputs = [node.outputs[0] for node in (cast, *sizes)]
    for value, kind, name in zip(outputs, (ir.DataType.FLOAT, *[ir.DataType.INT64] * 2), "yst", strict=True):
        value.name, value.type = name, ir.TensorType(kind)
    graph.outputs.extend(outputs)
    return ir.Model(graph, ir_version=11)


@pytest.mark.parametrize("dtype", [ir.DataType.FLOAT, ir.DataType.FLOAT16], ids=lambda item: item.name)
def test_activations_are_rounded_as_by_our_own_arithmetic(dtype: ir.DataType) -> None:
    content = serialize(dynamic_model(dtype)).content
    assert has_four_bits(content) and not has_four_bits(decoded(content))
    x = np.random.default_rng(0).standard_normal((3, 5, 48)).astype(dtype.numpy())
    x[0, 0, :16], x[0, 0, 16] = 0.0, 100.0  # A block of zeros, and a value beyond the range.
    found, shape, blocks = Session(content, threads=1).run({"x": x})
    rows = x.astype(np.float32).reshape(-1, 16)
    own = round_to_float(np.abs(rows).max(axis=1, keepdims=True) / (SCALE * np.float32(6)), FLOAT8_E4M3FN)
    scale = own * SCALE
    divisor = np.where(scale == 0, np.float32(1), scale)
    wanted = (round_to_float(rows / divisor, FLOAT4_E2M1) * scale).reshape(x.shape)
    assert np.array_equal(found, wanted) and np.abs(found).max() > 1
    assert (shape.tolist(), blocks.tolist()) == ([3, 5, 48], [3, 5, 3])


# What operators of ONNX Runtime compute: without its type, what reads such a result stays float.


TEXT = """(float[N,6,64] x) => (float[N,6,16] y) <float[64,64] w, float[64] g, float[64] b, float[64,16] v> {
    h = MatMul(x, w)
    s = com.microsoft.SkipLayerNormalization(x, h, g, b)
    y = MatMul(s, v) }"""


def test_what_reads_a_fused_operator_is_integer():
    model = build(TEXT)
    constants = {name: value.const_value for name, value in model.graph.initializers.items()}
    assert know_foreign_types(model) == 1
    value = model.graph.node("s").outputs[0]
    assert value.dtype == ir.DataType.FLOAT
    assert [size for size in value.shape or () if isinstance(size, int)] == [6, 64]
    assert {name: value.const_value for name, value in model.graph.initializers.items()} == constants
    assert [value.name for value in model.graph.inputs] == ["x"]
    layers = {layer.op: layer for layer in make_plan(prepare(model, "m.onnx"), load_target("ort-cpu")).layers}
    assert layers["MatMul"].quantized
    assert layers["SkipLayerNormalization"].reason == (
        "target ort-cpu has no rule for SkipLayerNormalization of domain com.microsoft: "
        "if ONNX Runtime's optimizer created it, quantize the model from before the optimization"
    )


def test_an_operator_that_nobody_knows_stays_unknown():
    model = build("(float[N,4] x) => (float[N,4] y) <float[4,4] w> { a = other.Thing(x)\n y = MatMul(a, w) }")
    assert know_foreign_types(model) == 0
    assert model.graph.node("a").outputs[0].type is None
    assert np.asarray(model.graph.initializers["w"].const_value.numpy()).shape == (4, 4)
