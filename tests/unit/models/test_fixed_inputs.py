"""Open dimensions are closed by what is asked for, and a missing one is asked for as it would be typed."""

import pytest

from ptq_cli.core.errors import ModelInputError
from ptq_cli.models.fixed_inputs import close_dimensions, closed_sizes, reopened
from tests.each_case import each_case
from tests.unit.plan.graphs import build

PAIR = "(float[n,l] x, float[n,k] m) => (float[n,l] y, float[n,k] z) { y = Exp(x) z = Exp(m) }"
IMAGES = "(float[n,3,h,w] x, float[n,4] k) => (float[n,3,h,w] y, float[n,4] z) { y = Relu(x) z = Exp(k) }"


@each_case(
    "shapes, sizes",
    [
        ({"batch": [1], "x": [1, 3, 8, 6]}, {"n": 1, "h": 8, "w": 6}),
        ({"x": [2, 3, 8, 6]}, {"n": 2, "h": 8, "w": 6}),
    ],
)
def test_sizes_are_those_of_the_shapes(shapes, sizes):
    model = build(IMAGES)
    assert closed_sizes(model, shapes, "qnn") == sizes
    close_dimensions(model, sizes)
    assert [list(value.shape) for value in (*model.graph.inputs, *model.graph.outputs)] == [
        [sizes["n"], 3, 8, 6], [sizes["n"], 4],
    ] * 2  # fmt: skip
    again = reopened(model, build(IMAGES))
    assert [str(size) for size in again.graph.inputs[0].shape] == ["n", "3", "h", "w"]
    assert again.graph.outputs[0].shape is None and reopened(again, build(IMAGES)) is again


@each_case(
    "graph, shapes, example, hint",
    [
        (IMAGES, {"batch": [1]}, {"x": (1, 3, 5, 7)}, "--set model.input_shape.x=1,3,5,7"),
        (IMAGES, {}, {}, "--set model.input_shape.x=1,3,1,1"),
        (PAIR, {}, {"x": (1, 8), "m": (1, 8)}, "--set model.input_shape.x=1,8 --set model.input_shape.m=1,8"),
        (PAIR, {"x": [1, 8]}, {"m": (1, 8)}, "--set model.input_shape.m=1,8"),
        ("(float[n,4] k) => (float[n,4] z) { z = Exp(k) }", {}, {}, "--set model.input_shape.batch=1"),
        (
            "(float[n,4] batch) => (float[n,4] z) { z = Exp(batch) }",
            {},
            {},
            "--set model.input_shape.batch=1",
        ),
        (
            "(float[4,n] k) => (float[4,n] z) { z = Exp(k) }",
            {"batch": [1]},
            {},
            "--set model.input_shape.k=4,1",
        ),
    ],
)
def test_an_open_size_is_refused_with_what_to_pass(graph, shapes, example, hint):
    with pytest.raises(ModelInputError, match="takes static shapes, and axis") as caught:
        closed_sizes(build(graph), shapes, "qnn", lambda: example)
    assert caught.value.hint == f"pass {hint}"
