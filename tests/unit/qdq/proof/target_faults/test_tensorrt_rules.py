"""A graph by hand that TensorRT takes, as a file of another tool without shapes; each rule broken once."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.proof.operators import float_reason
from ptq_cli.qdq.proof.target_faults import target_faults
from ptq_cli.qdq.read.quantized_file import open_quantized

TARGET = load_target("tensorrt")
GRAPH = """<ir_version: 10, opset_import: ["" : 17]> g (float[N,4,8,8] x) => (float[N,8,8,8] y)
    <float s = {0.05}, float t = {0.07}, int8 z = {0}, int8 z3 = {3}, uint8 u = {128},
    float[4] sa = {1, 1, 2, 2}, int8[4] za = {0, 0, 0, 0}> {
    q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
    v1 = QuantizeLinear<axis=0>(w1, k8, z8) w1d = DequantizeLinear<axis=0>(v1, k8, z8)
    c1 = Conv<pads=[1,1,1,1]>(d, w1d, b1)
    r1 = Relu(c1)
    q1 = QuantizeLinear(r1, t, z) d1 = DequantizeLinear(q1, t, z)
    v2 = QuantizeLinear<axis=0>(w2, k8, z8) w2d = DequantizeLinear<axis=0>(v2, k8, z8)
    c2 = Conv<pads=[1,1,1,1]>(d1, w2d)
    a = Add(c2, d1)
    q2 = QuantizeLinear(a, t, z) d2 = DequantizeLinear(q2, t, z)
    v3 = QuantizeLinear<axis=1>(w3, k6, z6) w3d = DequantizeLinear<axis=1>(v3, k6, z6)
    c3 = ConvTranspose(d2, w3d)
    q3 = QuantizeLinear(c3, t, z) d3 = DequantizeLinear(q3, t, z)
    j = Concat<axis=1>(d3, d2)
    q4 = QuantizeLinear(j, t, z) d4 = DequantizeLinear(q4, t, z)
    v4 = QuantizeLinear<axis=0>(w4, k8, z8) w4d = DequantizeLinear<axis=0>(v4, k8, z8)
    y = Conv(d4, w4d) }"""


def constants() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    shapes = {"w1": (8, 4, 3, 3), "b1": (8,), "w2": (8, 8, 3, 3), "w3": (8, 6, 1, 1), "w4": (8, 14, 1, 1)}
    noise = {name: random.integers(-50, 50, shape) for name, shape in shapes.items()}
    found = {name: (0.1 * array).astype(np.float32) for name, array in noise.items()}
    for size in (6, 8):
        found[f"k{size}"], found[f"z{size}"] = np.full(size, 0.1, np.float32), np.zeros(size, np.int8)
    found["u8"], found["o8"] = np.full(8, 128, np.uint8), np.ones(8, np.int8)
    found["b32"] = random.integers(-50, 50, 8).astype(np.int32)
    found["w3i"] = random.integers(-50, 50, (8, 6, 1, 1)).astype(np.int8)
    return found


@pytest.fixture
def opened(tmp_path):
    def opened(*changes):
        text = GRAPH
        for old, new in changes:
            assert old in text, old
            text = text.replace(old, new)
        model = parser.parse_model(text)
        for name, array in constants().items():
            if name in text:
                model.graph.initializer.append(numpy_helper.from_array(array, name))
        for node in model.graph.node:
            node.name = node.output[0]
        onnx.save(model, tmp_path / "theirs.onnx")
        return open_quantized(tmp_path / "theirs.onnx")

    return opened


def pair(name: str, source: str, parameters: str) -> str:
    return (
        f"q{name} = QuantizeLinear({source}, {parameters}) d{name} = DequantizeLinear(q{name}, {parameters})"
    )


def test_the_graph_is_right_although_the_file_holds_no_shapes(opened):
    model = opened()
    assert list(target_faults(model, TARGET)) == []
    reasons = {node.name: float_reason(node, TARGET) for node in model.graph if "Linear" not in node.op_type}
    assert set(reasons.values()) == {""}


WEIGHT = "v{} = QuantizeLinear<axis={}>(w{}, {}) w{}d = DequantizeLinear<axis={}>(v{}, {})"


def weight(number: int, axis: int, parameters: str) -> str:
    return WEIGHT.format(number, axis, number, parameters, number, axis, number, parameters)


BROKEN = {
    "zero point": (
        [(pair("", "x", "s, z"), pair("", "x", "s, z3"))],
        "'q': the zero point is 3, but the target expects 0",
    ),
    "uint8": (
        [(pair("", "x", "s, z"), pair("", "x", "s, u"))],
        "'q' is uint8, but the target expects int8 or float8e4m3fn or float4e2m1",
    ),
    "scale of channels": (
        [(pair("", "x", "s, z"), pair("", "x", "sa, za"))],
        "'q' has several scales, but the target expects one scale for an activation",
    ),
    "uint8 weight": (
        [(weight(1, 0, "k8, z8"), weight(1, 0, "k8, u8"))],
        "'w1d' is uint8, but the target expects int8 or float8e4m3fn or float4e2m1 for a weight",
    ),
    "zero point of a weight": (
        [(weight(1, 0, "k8, z8"), weight(1, 0, "k8, o8"))],
        "'w1d': the weight's zero point is not 0",
    ),
    "axis of Conv": (
        [(weight(2, 0, "k8, z8"), weight(2, 1, "k8, z8"))],
        "'w2d': scales are along axis 1, but Conv expects axis 0",
    ),
    "axis of ConvTranspose": (
        [(weight(3, 1, "k6, z6"), weight(3, 0, "k8, z8"))],
        "'w3d': scales are along axis 0, but ConvTranspose expects axis 1",
    ),
    "weight as integers": (
        [(weight(3, 1, "k6, z6"), "w3d = DequantizeLinear<axis=1>(w3i, k6, z6)")],
        "the weight of 'c3' is not stored as floats before a Q/DQ pair",
    ),
    "int32 bias": (
        [("c1 = ", "bd = DequantizeLinear<axis=0>(b32, k8) c1 = "), ("w1d, b1", "w1d, bd")],
        "'bd' dequantizes int32, but the target expects float biases",
    ),
    "bias behind a pair": (
        [("c1 = ", pair("b", "b1", "s, z") + " c1 = "), ("w1d, b1", "w1d, db")],
        "'db' quantizes the bias of 'c1', but the target expects float biases",
    ),
    "Q between Conv and Relu": (
        [("r1 = Relu(c1)", pair("c", "c1", "t, z") + " r1 = Relu(dc)")],
        "the result of 'c1' is quantized before Relu 'r1', which is fused into it",
    ),
    "Q between Conv and Add": (
        [("a = Add(c2, d1)", pair("c", "c2", "t, z") + " a = Add(dc, d1)")],
        "the result of 'c2' is quantized before Add 'a', into which it is fused",
    ),
    "Q behind the last Conv": (
        [("y = Conv(d4, w4d)", f"c4 = Conv(d4, w4d) {pair('5', 'c4', 't, z')} y = Sin(d5)")],
        "the result of 'c4' is quantized, but no integer operator reads it",
    ),
    "residual": (
        [("a = Add(c2, d1)", "a = Add(c2, r1)")],
        "Add 'a' is fused into 'c2', but its other input 'r1' is not quantized",
    ),
    "two scales into a Concat": (
        [(pair("3", "c3", "t, z"), pair("3", "c3", "s, z"))],
        "the edges of Concat 'j' have 2 scales, but must share one",
    ),
}


@pytest.mark.parametrize(("changes", "fault"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_rule_is_named(opened, changes, fault):
    assert fault in [item.text for item in target_faults(opened(*changes), TARGET)]


def test_a_side_that_nobody_quantizes_is_no_residual(opened):
    changes = [("a = Add(c2, d1)", "a = Add(c2, w5)"), ("<float s =", "<float[1] w5 = {2}, float s =")]
    assert list(target_faults(opened(*changes), TARGET)) == []


def test_where_a_user_keeps_layers_in_float_a_side_of_a_sum_may_be_one(opened):
    model = opened(("a = Add(c2, d1)", "a = Add(c2, r1)"))
    assert [fault.rule for fault in target_faults(model, TARGET)] == ["residuals"]
    model.metadata_props["ptq.amax_overrides"] = '[{"match": "sum", "quantize": false}]'
    assert list(target_faults(model, TARGET)) == []
