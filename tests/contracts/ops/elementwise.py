"""Arithmetic of two tensors, and activation functions, between operators that are quantized."""

from tests.contracts.ops.case import COST, OpCase, graph

PLANE = "float[N,4,8,8] x"
WEIGHTS = "float[4,4,3,3] w, float[4,4,3,3] v, float[4,4,1,1] u"


def both(operator: str, constants: str = "") -> str:
    """Two Convs, the operator of both, and a Conv that reads it."""
    first, second = "c = Conv<pads=[1,1,1,1]>(x, w)", "d = Conv<pads=[1,1,1,1]>(x, v)"
    return graph(PLANE, WEIGHTS + constants, first, second, f"a = {operator}", "y = Conv(a, u)")


def after(operator: str, constants: str = "") -> str:
    """Conv, the operator of its result, and a Conv that reads that."""
    weights = "float[4,4,3,3] w, float[4,4,1,1] u"
    return graph(PLANE, weights + constants, "c = Conv(x, w)", f"a = {operator}", "y = Conv(a, u)")


ELEMENTWISE = {
    "sub": OpCase(
        graph=both("Sub(c, d)"),
        integer="c d y",
        floats={"a": "no integer Sub: ONNX Runtime adds and multiplies in integers"},
        kernels={"QLinearConv": 3},
    ),
    "mul_scalar": OpCase(
        graph=graph(
            PLANE, "float[4,4,1,1] u, float k = {0.5}", "t = Tanh(x)", "a = Mul(t, k)", "y = Conv(a, u)"
        ),
        integer="y",
        floats={
            "t": "no integer Tanh: Sigmoid and LeakyRelu are",
            "a": "reads the constant 'k': quantizing it would lose accuracy and gain nothing",
        },
        kernels={"QLinearConv": 1},
    ),
    "div": OpCase(
        graph=graph(
            PLANE,
            "float[4,4,3,3] w, float[4,4,3,3] v, float[4,4,1,1] u",
            "c = Conv<pads=[1,1,1,1]>(x, w) d = Conv<pads=[1,1,1,1]>(x, v) e = Exp(d) a = Div(c, e)",
            "y = Conv(a, u)",
        ),
        integer="c d y",
        floats={
            "e": "target ort-cpu has no rule for Exp",
            "a": "no integer Div: ONNX Runtime adds and multiplies in integers",
        },
        kernels={"QLinearConv": 3},
        least_db=21,
    ),
    "prelu": OpCase(
        graph=after("PRelu(c, k)", ", float[4,1,1] k"),
        integer="c y",
        floats={"a": "no integer PRelu: Sigmoid and LeakyRelu are"},
        kernels={"QLinearConv": 2},
    ),
    "sigmoid": OpCase(
        graph=after("Sigmoid(c)"), integer="c a y", kernels={"QLinearConv": 2, "QLinearSigmoid": 1}
    ),
    "hard_sigmoid": OpCase(
        graph=after("HardSigmoid<alpha=0.16666667>(c)"), integer="c a y", kernels={"QLinearConv": 2}
    ),
    "hard_sigmoid_of_a_pooling": OpCase(
        graph=after("HardSigmoid(p)").replace("a = ", "p = MaxPool<kernel_shape=[2,2]>(c)\n a = "),
        integer="c y",
        floats={"p": COST, "a": "no integer HardSigmoid: Sigmoid and LeakyRelu are"},
        kernels={"QLinearConv": 2},
    ),
    "hard_swish": OpCase(
        graph=after("HardSwish(c)"),
        integer="c a y",
        kernels={"QLinearConv": 2, "QLinearAdd": 1, "QLinearMul": 1},
    ),
    "gelu": OpCase(
        graph=after("Gelu(c)"),
        integer="c y",
        floats={"a": "no integer Gelu: Sigmoid and LeakyRelu are"},
        kernels={"QLinearConv": 2},
    ),
    "gelu_written_out": OpCase(
        graph=graph(
            PLANE,
            "float[4,4,3,3] w, float[4,4,1,1] u, float r = {1.4142135}, float one = {1}, float half = {0.5}",
            "c = Conv(x, w) d = Div(c, r) e = Erf(d) f = Add(e, one) g = Mul(c, f) a = Mul(g, half)",
            "y = Conv(a, u)",
        ),
        integer="c y",
        floats={"a": "no integer Gelu: Sigmoid and LeakyRelu are"},
        kernels={"QLinearConv": 2},
    ),
    "silu_opset_24": OpCase(
        graph=graph(
            PLANE,
            "float[4,4,3,3] w, float[4,4,1,1] u",
            "c = Conv(x, w) s = Sigmoid(c) a = Mul(c, s) y = Conv(a, u)",
        ),
        opset=24,
        integer="c y",
        floats={"a": "no integer Swish: Sigmoid and LeakyRelu are"},
        kernels={"QLinearConv": 2},
    ),
}
