"""What a plan says; that of each small graph is held in ``tests/contracts/small_graphs``."""

import pytest

from ptq_cli.core.errors import NothingToQuantizeError
from ptq_cli.plan.planner import LayerChoices, make_plan
from tests.unit.plan.cases.tables import CASES
from tests.unit.plan.graphs import build

AXES = {
    "conv": 0, "depthwise": 0, "conv_transpose": 1, "conv_transpose_grouped": 1, "gemm": 1,
    "gemm_transposed_weight": 0, "matmul": 1, "matmul_batched_weight": None, "matmul_vector_weight": None,
}  # fmt: skip


@pytest.mark.parametrize("name", AXES)
def test_a_weight_has_a_scale_for_each_output_channel(name, target):
    plan = make_plan(build(CASES[name].graph), target)
    assert [site.axis for site in plan.weights] == [AXES[name]]


BIASES = {
    "conv": ("b", "y", 2), "gemm": ("b", "y", 2), "gemm_scalar_bias": ("b", "y", 2),
    "matmul_bias": ("b", "y", 1), "matmul_bias_fixed_shape": ("b", "y", 0),
    "matmul_row_bias_2d": ("b", "y", 1),
}  # fmt: skip


@pytest.mark.parametrize("name", BIASES)
def test_a_bias_takes_the_scales_of_the_input_and_the_weight(name, target):
    plan = make_plan(build(CASES[name].graph), target)
    assert [(site.tensor, site.node, site.input_index) for site in plan.biases] == [BIASES[name]]
    assert plan.biases[0].activation == "x"
    assert plan.biases[0].weight is plan.weights[0]


def test_sites_come_in_the_order_of_the_graph_and_are_measured_once(target):
    plan = make_plan(build(CASES["reshape_transpose"].graph), target)
    assert list(plan.activations) == ["x", "g", "r", "t"]
    assert plan.measured == ("x", "g")
    assert plan.constants == ("u", "w")


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        ("(float[N,8] x) => (float[] y) { y = Relu(x) }", "its result is not quantized"),
        ("(float[N,8] x) => (float[] y) { y = Sin(x) }", "target ort-cpu has no rule for Sin"),
        (
            "(float[N,8] x) => (float[] y) <float[8,4] w, float[4] b> { y = Gemm<alpha=0.5>(x, w, b) }",
            "alpha is 0.5, the integer kernel needs 1",
        ),
        (
            "(float[N,8] x, float[8,4] w) => (float[] y) { y = Gemm(x, w) }",
            "its weight 'w' is computed at run time",
        ),
        ("(float[N,8] x) => (float[N,8] x) { }", "it has no operators"),
        (
            "(float16[N,4] x) => (float16[] y) <float16[4,2] w = {1,2,3,4,5,6,7,8}> { y = MatMul(x, w) }",
            "'x' is float16, not float",
        ),
        ("(int64[N,4] x) => (int64[N,4] y) { y = Add(x, x) }", "computes int64, not floats"),
        ("(float[N,0] x) => (float[] y) <float[0,2] w> { y = MatMul(x, w) }", "its weight 'w' has no values"),
    ],
    ids=["relu", "tanh", "alpha", "run_time_weight", "empty", "float16", "integers", "no_values"],
)
def test_nothing_to_quantize_says_why(graph, reason, target):
    with pytest.raises(NothingToQuantizeError) as caught:
        make_plan(build(graph), target)
    assert caught.value.message == f"target 'ort-cpu' cannot quantize anything in this model: {reason}"
    assert caught.value.code == "PTQ-PLAN-001"
    in_float32 = "only float32 is quantized: export the model in float32; " if "float16" in reason else ""
    assert caught.value.hint == f"{in_float32}run `ptq inspect` to see each layer's reason"


SOFTMAX_BETWEEN = """(float[b,3,8,8] x) => (float[] y)
<float[4,3,3,3] w1, float[5,4,3,3] w2> { c = Conv(x, w1)
  s = Softmax(c)
  y = Conv(s, w2) }"""


def test_a_layer_in_float_makes_no_site_that_was_none_before(target):
    model = build(SOFTMAX_BETWEEN)
    whole = make_plan(model, target)
    found = make_plan(model, target, LayerChoices(in_float={"c": "looked up"}))
    assert set(whole.activations) == {"x", "c"}
    assert found.activations == {}
    layers = {layer.name: layer for layer in found.layers}
    assert layers["c"].reason == "looked up"
    assert "must not be integer" in layers["y"].reason
    assert [site.tensor for site in found.weights] == ["w1"]
