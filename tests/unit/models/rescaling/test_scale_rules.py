"""Which channels may get factors, graph by graph; and whatever factors they get, the function stays."""

import numpy as np
import onnx_ir as ir
import pytest

from ptq_cli.models.files.stored import serialize
from ptq_cli.models.rescaling.scale_rules import trace_scales
from ptq_cli.models.rescaling.scale_spaces import ScaleSpace, rescale, scale_spaces
from ptq_cli.runtime.session import Session
from tests.each_case import each_case
from tests.unit.plan.graphs import build, sample

IMAGE = "(float[n, 3, 6, 6] x) => (float[n, 4, h, w] y)"
CONVS = "float[8, 3, 3, 3] w1, float[8] b1, float[4, 8, 1, 1] w2"


def between(middle: str, constants: str = "", image: str = IMAGE) -> str:
    """A Conv, something, and a Conv."""
    more = f", {constants}" if constants else ""
    return f"""{image} <{CONVS}{more}> {{
        [up] a = Conv (x, w1, b1)
        {middle}
        [down] y = Conv (b, w2)
    }}"""


ONE_SPACE = {
    "nothing": between("b = Identity (a)"),
    "Relu": between("b = Relu (a)"),
    "LeakyRelu": between("b = LeakyRelu <alpha = 0.1> (a)"),
    "PRelu": between("b = PRelu (a, slope)", "float[8, 1, 1] slope"),
    "Clip at 0": between("b = Clip (a, zero)", "float zero = {0}"),
    "Max and Min of each channel": between("m = Max (a, low) b = Min (m, high)",
        "float[8, 1, 1] low, float[1, 8, 1, 1] high"),
    "pools": between("p = MaxPool <kernel_shape = [2, 2]> (a) b = AveragePool <kernel_shape = [2, 2], "
        "pads = [1, 1, 1, 1]> (p)"),
    "a constant that is added": between("b = Add (a, c)", "float[8, 1, 1] c"),
    "one number that is added": between("b = Add (a, c)", "float[1] c"),
    "a residual": between("[same] c = Conv (a, w3) b = Add (a, c)", "float[8, 8, 1, 1] w3"),
    "a gate": between("g = GlobalAveragePool (a) e = Conv (g, w3) s = Sigmoid (e) b = Mul (a, s)",
        "float[8, 8, 1, 1] w3"),
    "a mean that is flattened": """(float[n, 3, 6, 6] x) => (float[n, 5] y) <float[8, 3, 3, 3] w1,
        float[8, 5] w2> {
        a = Conv (x, w1) r = Relu (a) g = GlobalAveragePool (r) f = Flatten (g) y = Gemm (f, w2) }""",
    "a map that is flattened": """(float[n, 3, 4, 4] x) => (float[n, 5] y) <float[8, 3, 3, 3] w1,
        float[5, 32] w2> {
        a = Conv (x, w1) f = Flatten (a) y = Gemm <transB = 1> (f, w2) }""",
    "MatMul with its bias": """(float[n, 3, 6] x) => (float[n, 3, 4] y) <float[6, 8] w1, float[8] b1,
        float[8, 4] w2> {
        a = MatMul (x, w1) s = Add (a, b1) r = Relu (s) y = MatMul (r, w2) }""",
    "LayerNormalization": """(float[n, 3, 6] x) => (float[n, 3, 4] y) <float[6] g, float[6] b,
        float[6, 4] w> {
        a = LayerNormalization (x, g, b) y = MatMul (a, w) }""",
    "a root of the mean square": """(float[n, 3, 6] x) => (float[n, 3, 4] y) <float[6] g, float[6, 4]
        w, int64[1] axes = {-1}> {
        s = Mul (x, x) m = ReduceMean (s, axes) r = Sqrt (m) d = Div (x, r) a = Mul (d, g) y = MatMul (a,
        w) }""",
    "attention": """(float[n, 3, 6] x) => (float[n, 3, 4] y)
        <float[6, 8] wv, float[3, 6] scores, float[8, 4] wo, int64[4] heads = {0, 0, 2, 4}, int64[3] whole
        = {0, 0, 8}> {
        t = Transpose <perm = [0, 2, 1]> (x) p = MatMul (x, t) q = Softmax (p) u = Unsqueeze (q, one)
        v = MatMul (x, wv) h = Reshape (v, heads) k = Transpose <perm = [0, 2, 1, 3]> (h)
        m = MatMul (u, k) b = Transpose <perm = [0, 2, 1, 3]> (m) c = Reshape (b, whole) y = MatMul (c,
        wo) }""",
}  # fmt: skip
ONE_SPACE["attention"] = ONE_SPACE["attention"].replace("float[3, 6] scores", "int64[1] one = {1}")
SEVERAL = {
    "several readers": (between("r = Relu (a) c = Conv (r, w3) d = Conv (r, w4) b = Concat <axis = 1> (c, d)",
                                "float[6, 8, 1, 1] w3, float[2, 8, 1, 1] w4"), 3),
    "depthwise": (between("r = Relu (a) d = Conv <group = 8, pads = [1, 1, 1, 1]> (r, w3) b = Relu (d)",
        "float[8, 1, 3, 3] w3"), 2),
    "grouped": (between("r = Relu (a) b = Conv <group = 2> (r, w3)", "float[8, 4, 1, 1] w3"), 2),
    "ConvTranspose with groups": (between("b = ConvTranspose <group = 2, strides = [2, 2]> (a, w3, b3)",
                                          "float[8, 4, 2, 2] w3, float[8] b3"), 2),
    "DepthToSpace": (between("r = DepthToSpace <blocksize = 2> (a) c = Conv (r, w3) b = Relu (c)",
        "float[8, 2, 1, 1] w3"), 2),
    "Concat": (between("c = Conv (x, w3) d = Concat <axis = 1> (a, c) b = Conv (d, w4)",
                       "float[6, 3, 3, 3] w3, float[8, 14, 1, 1] w4"), 3),
    "Split": (between("c, d = Split <axis = 1, num_outputs = 2> (a) e = Relu (d) f = Sub (c, e) b = "
        "Conv (f, w3)",
                      "float[8, 4, 1, 1] w3"), 2),
}  # fmt: skip
NO_SPACE = {
    "ReLU6": between("b = Clip (a, zero, six)", "float zero = {0}, float six = {6}"),
    "HardSwish": between("b = HardSwish (a)"),
    "an output": between("b = Relu (a) z = Identity (b)",
        image="(float[n, 3, 6, 6] x) => (float[n, 4, h, w] y, float[n, 8, h, w] z)"),
    "a weight of two layers": """(float[n, 6] x) => (float[n, 6] y) <float[6, 6] w> {
        a = MatMul (x, w) y = MatMul (a, w) }""",
    "a product with itself": between("b = Mul (a, a)"),
    "a branch": between("c = If (p) <then_branch = t () => (float[n, 8, h, w] u) { u = Neg (a) }, "
        "else_branch = e () => (float[n, 8, h, w] v) { v = Abs (a) }> b = Add (a, c)",
                        image="(float[n, 3, 6, 6] x, bool p) => (float[n, 4, h, w] y)"),
}  # fmt: skip
GRAPHS = {**ONE_SPACE, **{name: text for name, (text, _) in SEVERAL.items()}}


def spaces_of(model: ir.Model) -> list[ScaleSpace]:
    return scale_spaces(trace_scales(model.graph))


@each_case("name", ONE_SPACE)
def test_one_group_of_channels_is_found(name: str) -> None:
    assert len(spaces_of(build(ONE_SPACE[name]))) == 1


@each_case("name", SEVERAL)
def test_each_group_of_channels_is_found(name: str) -> None:
    text, count = SEVERAL[name]
    assert len(spaces_of(build(text))) == count


@each_case("name", NO_SPACE)
def test_what_a_factor_would_change_stays(name: str) -> None:
    assert spaces_of(build(NO_SPACE[name])) == []


@each_case("name", GRAPHS)
def test_factors_change_constants_and_no_output(name: str) -> None:
    model = build(GRAPHS[name])
    before, nodes = serialize(model), [node.name for node in model.graph]
    trace = trace_scales(model.graph)
    random = np.random.default_rng(0)
    factors = {
        int(root): float(2 ** random.uniform(-4, 4)) for item in scale_spaces(trace) for root in item.roots
    }
    assert rescale(model.graph, trace, factors) >= 2
    assert [node.name for node in model.graph] == nodes
    batch = sample(model)
    for wanted, found in zip(
        *(Session(item, threads=1).run(batch) for item in (before, serialize(model))), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_what_a_space_says_of_itself() -> None:
    (space,) = spaces_of(build(ONE_SPACE["attention"]))
    assert (space.makers, [item.name for item in space.readers]) == (("v",), ["y"])
    assert space.through == {"MatMul"}
    (space,) = spaces_of(build(ONE_SPACE["LayerNormalization"]))
    assert (space.makers, space.through) == (("a",), {"LayerNormalization"})
    space, *_ = spaces_of(build(SEVERAL["several readers"][0]))
    assert [item.name for item in space.readers] == ["c", "d"]
    assert [(item.name, item.axis, len(item.channels)) for item in space.held] == [("a", 1, 8), ("r", 1, 8)]


def test_a_factor_that_is_not_positive_is_refused() -> None:
    model = build(ONE_SPACE["Relu"])
    with pytest.raises(ValueError, match="a factor is a positive number"):
        rescale(model.graph, trace_scales(model.graph), {1: 0.0})


def test_the_weight_that_is_also_a_table_of_embeddings_stays() -> None:
    model = build("""(int64[n, 3] ids) => (float[n, 3, 10] y) <float[10, 6] table, float[6] g, float[6] b,
        float[6, 10] w> {
        e = Gather (table, ids) a = LayerNormalization (e, g, b) y = MatMul (a, w) }""")
    assert len(spaces_of(model)) == 1
    constants = model.graph.initializers
    constants["w"].const_value = ir.tensor(constants["table"].const_value.numpy().T.copy(), name="w")
    assert spaces_of(model) == []
