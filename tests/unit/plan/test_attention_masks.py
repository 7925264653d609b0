"""What counts as a mask, one operator at a time."""

import numpy as np

from ptq_cli.plan.attention_masks import adds_mask, carries_mask
from tests.each_case import each_case
from tests.unit.plan.graphs import build

X = "(float[2,4] x, float[2,4] m, bool[2,4] k) => (float[] y)"


def last(body: str, constants: str = "", opset: int = 20):
    text = f"{X} <{constants}> {{ {body} }}" if constants else f"{X} {{ {body} }}"
    return list(build(text, opset).graph)[-1]


@each_case(
    "body, constants",
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


INFINITE = {"c": np.array(-np.inf, np.float32)}
SMALLEST = {"c": np.array(np.finfo(np.float32).min, np.float32), "one": np.array(1, np.float32)}
FROM_INPUTS = {
    "infinite_where": ("y = Where(k, x, c)", "float c", INFINITE),
    "infinite_where_of_an_operand": ("b = Where(k, m, c)\n y = Add(x, b)", "float c", INFINITE),
    "infinite_everywhere": ("y = Add(x, c)", "float[1,4] c", {"c": np.full((1, 4), -np.inf, np.float32)}),
    "smallest_of_the_dtype": (
        "o = Sub(one, m)\n b = Mul(o, c)\n y = Add(x, b)",
        "float c, float one",
        SMALLEST,
    ),
    "divided_by_almost_nothing": (
        "o = Sub(one, m)\n b = Div(o, c)\n y = Add(x, b)",
        "float c, float one",
        SMALLEST | {"c": np.array(-1e-9, np.float32)},
    ),
    "logarithm_of_truth": ("f = Cast<to=1>(k)\n b = Log(f)\n y = Add(x, b)", "float unused", {}),
    "shape_of_the_input": (
        "s = Shape(x)\n f = ConstantOfShape<value = float[1] {-3.4e38}>(s)\n y = Where(k, x, f)",
        "float unused",
        {},
    ),
    "causal_of_the_input": (
        "s = Shape(x)\n f = ConstantOfShape<value = float[1] {-10000}>(s)\n t = Trilu<upper=1>(f)\n"
        " y = Add(x, t)",
        "float unused",
        {},
    ),
    "expanded": ("s = Shape(x)\n f = Expand(c, s)\n y = Where(k, x, f)", "float c", SMALLEST),
    "cast_like": ("b = Mul(m, c)\n d = CastLike(b, x)\n y = Add(x, d)", "float c", SMALLEST),
    "two_masks": ("b = Where(k, m, c)\n d = Min(b, m)\n y = Add(x, d)", "float c", INFINITE),
    "clamped": ("b = Mul(m, c)\n d = Clip(b, c)\n y = Add(x, d)", "float c", SMALLEST),
    "scattered": (
        "y = ScatterElements<axis=0>(x, i, u)",
        "int64[2,4] i, float[2,4] u",
        {"i": np.zeros((2, 4), np.int64), "u": np.full((2, 4), -1e9, np.float32)},
    ),
    "padded": ("p = Constant<value = int64[4] {0,1,0,1}>()\n y = Pad(x, p, c)", "float c", INFINITE),
}


@each_case("name", FROM_INPUTS)
def test_masks_that_are_computed_from_an_input(name):
    body, declared, constants = FROM_INPUTS[name]
    needed = {item.split()[1] for item in declared.split(", ")}
    arrays = {key: array for key, array in constants.items() if key in needed}
    node = list(build(f"{X} <{declared}> {{ {body} }}", constants=arrays).graph)[-1]
    assert adds_mask(node)
    assert carries_mask(node.outputs[0])


@each_case("change", ["Mul(a, h)", "Div(a, h)", "Neg(a)", "Cast<to=10>(a)", "Max(a, lowest)"])
def test_masked_scores_that_are_scaled_are_masked_scores(change):
    constants = {
        "c": np.array([[0, 0, -1e9, 0]], np.float32),
        "h": np.array(0.125, np.float32),
        "lowest": np.array(np.finfo(np.float32).min, np.float32),
    }
    text = f"{X} <float[1,4] c, float h, float lowest> {{ a = Add(x, c)\n y = {change} }}"
    text = text.replace("(float[] y)", "(float16[] y)") if "Cast" in change else text
    assert carries_mask(list(build(text, constants=constants).graph)[-1].outputs[0])


def test_a_deep_chain_of_sums_is_searched_once():
    # Each Add reads the last one twice: as a tree it has 2^60 leaves.
    body = (
        "b0 = Add(x, m)\n"
        + "\n".join(f"b{i + 1} = Add(b{i}, b{i})" for i in range(60))
        + "\n y = Add(b60, m)"
    )
    assert not adds_mask(last(body))


@each_case(
    "body, constants",
    [
        ("y = Add(x, m)", ""),
        ("z = Where(k, x, c)\n y = Add(z, m)", "float c = {0}"),
        ("b = Clip(m, c)\n y = Add(x, b)", "float c = {-65504}"),
        ("b = Div(m, c)\n y = Add(x, b)", "float c = {255}"),
        ("b = Log(m)\n y = Add(x, b)", ""),
        ("b = Max(m, c)\n y = Add(x, b)", "float c = {-3.4e38}"),
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


def test_a_very_long_way_is_given_up():
    body = (
        "b0 = Mul(m, c)\n" + "\n".join(f"b{i + 1} = Identity(b{i})" for i in range(20)) + "\n y = Add(x, b20)"
    )
    assert not adds_mask(last(body, "float c = {-1e9}"))
