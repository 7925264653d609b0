import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from ptq_cli.core.errors import ActivationAxisError, RecipeValueError
from ptq_cli.models.preparing.prepare_graph import prepare
from ptq_cli.pipeline.calibration.axes import activation_axes
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from tests.each_case import each_case


def make_model():
    """x → Conv → Relu → MaxPool → Conv → Transpose → MatMul, where two tensors share another's range."""
    value = helper.make_tensor_value_info
    weight = np.ones((4, 4, 1, 1), np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "v"], ["a"], "first"),
            helper.make_node("Relu", ["a"], ["b"], "act"),
            helper.make_node("MaxPool", ["b"], ["c"], "pool", kernel_shape=[2, 2]),
            helper.make_node("Conv", ["c", "w"], ["d"], "second"),
            helper.make_node("Transpose", ["d"], ["e"], "turn", perm=[1, 2, 0, 3]),
            helper.make_node("MatMul", ["e", "m"], ["y"], "fc"),
        ],
        "g",
        [value("x", TensorProto.FLOAT, ["n", 4, 6, 6])],
        [value("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(weight, "v"),
            numpy_helper.from_array(weight * 2, "w"),
            numpy_helper.from_array(np.ones((5, 5), np.float32), "m"),
        ],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return prepare(ir.from_proto(proto), "m.onnx")


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
        (
            {"b*": 1, "?": 2},
            ActivationAxisError,
            "'b*' asks for axis 1 of tensor 'b', '?' for axis 2",
        ),
        ({"act": 1, "b": 2}, ActivationAxisError, "'act' asks for axis 1 of tensor 'b', 'b' for axis 2"),
        ({"b": 4}, ActivationAxisError, "tensor 'b' of shape (?, 4, 6, 6) has no axis 4"),
        (
            {"b": 0},
            ActivationAxisError,
            "axis 0 of tensor 'b' holds its samples, not its channels",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(wanted, error, message):
    with pytest.raises(error) as caught:
        axes(**wanted)

    assert caught.value.message == message and caught.value.hint


def transposed():
    """x → Transpose → MatMul, whose samples lie along axis 1."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Relu", ["x"], ["r"], "relu"),
            helper.make_node("Transpose", ["r"], ["t"], "turn", perm=[1, 0, 2]),
            helper.make_node("Relu", ["t"], ["u"], "again"),
            helper.make_node("MatMul", ["u", "m"], ["y"], "fc"),
        ],
        "g",
        [value("x", TensorProto.FLOAT, ["n", 3, 5])],
        [value("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.ones((5, 5), np.float32), "m")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return prepare(ir.from_proto(proto), "m.onnx")


def test_samples_that_lie_along_another_axis_are_no_channels():
    model = transposed()
    plan = make_plan(model, load_target("ort-cpu"))
    assert activation_axes(model, plan, {"u": 2}) == {"u": 2}

    with pytest.raises(ActivationAxisError, match="axis 1 of tensor 'u' holds its samples"):
        activation_axes(model, plan, {"u": 1})


def test_axis_of_a_tensor_of_unknown_rank_is_left_to_the_first_batch():
    model = make_model()
    values = {value.name: value for node in model.graph for value in node.outputs}
    values["b"].shape = None

    assert activation_axes(model, PLAN, {"b": -3}) == {"b": -3}
