"""What the rules say of an operator is what ONNX Runtime does with it, and the words name the cause."""

import pytest

from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.proof.operators import float_reason
from ptq_cli.runtime.engine_registry import find_kernels
from tests.each_case import each_case
from tests.unit.plan.graphs import build
from tests.unit.qdq.paired import conv

TARGET = load_target("ort-cpu")


def test_a_target_names_the_integers_that_it_computes():
    node = next(node for node in conv().graph if node.name == "c")
    assert float_reason(node, load_target("tensorrt")) == "it reads uint8, but target tensorrt computes int8"


NO_PAIR = ("    qr = QuantizeLinear(r, s, zero)\n    dr = DequantizeLinear(qr, s, zero)\n", "")
CAUSES = {
    "nothing": ([], ""),
    "a float input": ([("(dx, dw", "(x, dw")], "its input 'x' is not quantized: it is a model input"),
    "a float weight": ([("(dx, dw", "(dx, f")], "its weight 'f' is a float constant"),
    "a grid with negative numbers": (
        [(", zero)", ", z)")],
        "Relu 'r' is needed: it clips at 0, but the grid after it reaches -2.56",
    ),
    "a float result": (
        [NO_PAIR, ("Sigmoid(dr)", "Sigmoid(r)")],
        "its result is not quantized: Sigmoid 'y' reads 'r'",
    ),
    "a result that is read twice": (
        [("Sigmoid(dr)", "Add(dr, r)")],
        "its result is also read as floats: Add 'y' reads 'r'",
    ),
    "a bias of 8 bits": (
        [("DequantizeLinear(b, p)", "DequantizeLinear(b8, p)")],
        "its bias 'db' is int8, not int32",
    ),
    "a scale that is an input": (
        [("x) =>", "x, float t) =>"), ("(x, s, z)", "(x, t, z)"), ("(qx, s, z)", "(qx, t, z)")],
        "its scale is computed at run time",
    ),
}


@each_case("name", CAUSES)
def test_a_conv_is_float_for_a_reason(name):
    changes, reason = CAUSES[name]
    if "b8" in str(changes):
        changes = [*changes, ("int32[4] b,", "int32[4] b, int8[4] b8 = {1, 2, 3, 4},")]
    model = conv(*changes)
    node = next(node for node in model.graph if node.name == "c")
    assert float_reason(node, TARGET) == reason
    assert (find_kernels(model)["c"].placement == "integer") == (reason == "")


def test_an_operator_without_a_rule_says_so():
    model = conv()
    node = next(node for node in model.graph if node.name == "y")
    assert float_reason(node, TARGET) == "its result is not quantized: 'y' is an output of the model"
    node.op_type = "Sum"
    assert (
        float_reason(node, TARGET)
        == "is Add of floats, written so that it is not merged into a slower kernel"
    )
    node.op_type = "Erf"
    assert float_reason(node, TARGET) == "target ort-cpu has no rule for Erf"


JOIN = """(float[2,4] x, float[2,4] t) => (float[2,4] y) <
    float s = {0.02}, uint8 z = {128}, float[4,4] w> {
    m = MatMul(x, w)
    qm = QuantizeLinear(m, s, z)
    dm = DequantizeLinear(qm, s, z)
    qt = QuantizeLinear(t, s, z)
    dt = DequantizeLinear(qt, s, z)
    a = Add(dm, dt)
    qa = QuantizeLinear(a, s, z)
    y = DequantizeLinear(qa, s, z) }"""


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("Add(dm, dt)", "Add(dm, dt)", ""),
        ("Add(dm, dt)", "Add(m, dt)", "its input 'm' is not quantized: it comes from MatMul 'm'"),
        (
            "qa = QuantizeLinear(a, s, z)\n    y = DequantizeLinear(qa, s, z)",
            "y = Sin(a)",
            "its result is not quantized: Sin 'y' reads 'a'",
        ),
    ],
)
def test_a_join_needs_all_sides(old, new, reason):
    model = build(JOIN.replace(old, new))
    add = next(node for node in model.graph if node.op_type == "Add")
    assert float_reason(add, TARGET) == reason
    assert (find_kernels(model)["a"].placement == "integer") == (reason == "")


def test_a_bias_of_another_scale_keeps_a_convolution_in_float():
    node = next(item for item in conv(("float k = {0.01}", "float k = {0.03}")).graph if item.name == "c")
    assert (
        float_reason(node, TARGET)
        == "its bias 'db' does not have the scale of its input times that of its weight"
    )
