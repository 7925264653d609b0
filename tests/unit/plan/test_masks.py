"""What counts as a mask, one operator at a time."""

import numpy as np
import pytest

from ptq_cli.plan.masks import adds_mask, carries_mask
from tests.unit.plan.graphs import build

X = "(float[2,4] x, float[2,4] m, bool[2,4] k) => (float[] y)"


def last(body: str, constants: str = "", opset: int = 20):
    text = f"{X} <{constants}> {{ {body} }}" if constants else f"{X} {{ {body} }}"
    return list(build(text, opset).graph)[-1]


@pytest.mark.parametrize(
    ("body", "constants"),
    [
        ("y = Add(x, c)", "float[1,4] c = {0, 0, -10000, 0}"),
        ("y = Add(c, x)", "float[1,4] c = {0, 0, -3.4e38, 0}"),
        ("y = Sub(x, c)", "float[1,4] c = {0, 0, 10000, 0}"),
        ("b = Mul(m, c)\n y = Add(x, b)", "float c = {-1e9}"),
        ("b = Mul(m, c)\n y = Sub(x, b)", "float c = {65504}"),
        ("n = Not(k)\n f = Cast<to=1>(n)\n b = Mul(f, c)\n y = Add(x, b)", "float c = {-3.4e38}"),
        ("b = Where(k, m, c)\n y = Add(x, b)", "float c = {-1e30}"),
        ("y = Where(k, x, c)", "float c = {-1e9}"),
        ("b = Mul(m, c)\n d = Sub(b, c)\n y = Add(x, d)", "float c = {10000}"),
    ],
)
def test_masks(body, constants):
    assert adds_mask(last(body, constants))


@pytest.mark.parametrize(
    ("body", "constants"),
    [
        ("y = Add(x, m)", ""),
        ("y = Add(x, c)", "float[1,4] c = {0, 0, -9999, 0}"),
        ("y = Add(x, c)", "float c = {-20000}"),
        ("y = Sub(x, c)", "float[1] c = {32768}"),
        ("y = Mul(x, c)", "float c = {-10000}"),
        ("y = Where(k, x, m)", ""),
        ("a = Tanh(c)\n y = Add(x, a)", "float[1,4] c = {0, 0, -10000, 0}"),
        ("y = Concat<axis=0>(x, m)", ""),
    ],
)
def test_no_masks(body, constants):
    assert not adds_mask(last(body, constants))


@pytest.mark.parametrize(
    "move", ["Identity(a)", "Transpose<perm=[1,0]>(a)", "Flatten(a)", "Concat<axis=0>(a, m)"]
)
def test_what_moves_masked_scores_holds_them(move):
    node = last(f"a = Add(x, c)\n y = {move}", "float[1,4] c = {0, 0, -10000, 0}")
    assert carries_mask(node.outputs[0])


@pytest.mark.parametrize("change", ["Softmax(a)", "Relu(a)", "Tanh(a)"])
def test_what_changes_masked_scores_holds_none(change):
    node = last(f"a = Add(x, c)\n y = {change}", "float[1,4] c = {0, 0, -10000, 0}")
    assert not carries_mask(node.outputs[0])


def test_half_precision_masks_count():
    text = "(float16[2,2] x) => (float16[] y) <float16[1,2] c> { y = Add(x, c) }"
    mask = np.array([[0.0, -65504.0]], np.float16)
    assert adds_mask(build(text, constants={"c": mask}).graph.node(0))


def test_a_very_long_way_is_given_up():
    body = (
        "b0 = Mul(m, c)\n" + "\n".join(f"b{i + 1} = Identity(b{i})" for i in range(20)) + "\n y = Add(x, b20)"
    )
    assert not adds_mask(last(body, "float c = {-1e9}"))
