import pytest

from ptq_cli.calibration.axes import activation_axes
from ptq_cli.core.errors import ActivationAxisError, RecipeValueError
from ptq_cli.models.preparing.prepare_graph import prepare
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from tests.each_case import each_case
from tests.unit.plan.graphs import build

# Two tensors share another's range.
GRAPH = """(float[n,4,6,6] x) => (float[4,5,n,5] y) <float[4,4,1,1] v, float[4,4,1,1] w, float[5,5] m> {
    [first] a = Conv(x, v) [act] b = Relu(a) [pool] c = MaxPool<kernel_shape=[2, 2]>(b)
    [second] d = Conv(c, w) [turn] e = Transpose<perm=[1, 2, 0, 3]>(d) [fc] y = MatMul(e, m) }"""


def make_model():
    return prepare(build(GRAPH), "m.onnx")


MODEL = make_model()
PLAN = make_plan(MODEL, load_target("ort-cpu"))


def axes(**wanted):
    return activation_axes(MODEL, PLAN, wanted)


def test_what_the_cases_rest_on():
    assert PLAN.measured == ("x", "b", "d")
    assert PLAN.activations["c"].source == "b" and PLAN.activations["e"].source == "d"


@each_case(
    "wanted, found",
    [
        ({}, {}),
        ({"b": 1}, {"b": 1}),
        ({"act": -3}, {"b": 1}),
        ({"b": -1}, {"b": 3}),
        ({"*": 1}, {"x": 1, "b": 1, "d": 1}),
        ({"*": 1, "b": 2}, {"x": 1, "b": 2, "d": 1}),
        ({"b": 2, "*": 1}, {"x": 1, "b": 2, "d": 1}),
        ({"[bd]": 1, "?": 1}, {"x": 1, "b": 1, "d": 1}),
        ({"second": 3}, {"d": 3}),
    ],
    ids=str,
)
def test_names_and_patterns_mean_measured_tensors(wanted, found):
    assert axes(**wanted) == found


@each_case(
    "wanted, error, message",
    [
        (
            {"c": 1},
            RecipeValueError,
            "activation_axis 'c': 'c' takes its range from 'b', so it is not measured itself",
        ),
        (
            {"secnod": 1},
            RecipeValueError,
            "activation_axis 'secnod' matches no activation that is quantized (did you mean 'second'?)",
        ),
        (
            {"secnod*": 1},
            RecipeValueError,
            "activation_axis 'secnod*' matches no activation that is quantized (did you mean 'second*'?)",
        ),
        ({"y": 1}, RecipeValueError, "activation_axis 'y' matches no activation that is quantized"),
        ({"b*": 1, "?": 2}, ActivationAxisError, "'b*' asks for axis 1 of tensor 'b', '?' for axis 2"),
        ({"act": 1, "b": 2}, ActivationAxisError, "'act' asks for axis 1 of tensor 'b', 'b' for axis 2"),
        ({"b": 4}, ActivationAxisError, "tensor 'b' of shape (?, 4, 6, 6) has no axis 4"),
        ({"b": 0}, ActivationAxisError, "axis 0 of tensor 'b' holds its samples, not its channels"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(wanted, error, message):
    with pytest.raises(error) as caught:
        axes(**wanted)

    assert caught.value.message == message and caught.value.hint


def test_samples_that_lie_along_another_axis_are_no_channels():
    text = """(float[n,3,5] x) => (float[3,n,5] y) <float[5,5] m> {
        [relu] r = Relu(x) [turn] t = Transpose<perm=[1, 0, 2]>(r) [again] u = Relu(t)
        [fc] y = MatMul(u, m) }"""
    model = prepare(build(text), "m.onnx")
    plan = make_plan(model, load_target("ort-cpu"))
    assert activation_axes(model, plan, {"u": 2}) == {"u": 2}
    with pytest.raises(ActivationAxisError, match="axis 1 of tensor 'u' holds its samples"):
        activation_axes(model, plan, {"u": 1})


def test_axis_of_a_tensor_of_unknown_rank_is_left_to_the_first_batch():
    model = make_model()
    values = {value.name: value for node in model.graph for value in node.outputs}
    values["b"].shape = None

    assert activation_axes(model, PLAN, {"b": -3}) == {"b": -3}
