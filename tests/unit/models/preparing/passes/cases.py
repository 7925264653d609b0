"""Small graphs that a pass rewrites, and near ones that it must leave alone."""

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ptq_cli.core.tensors import Array
from tests.unit.plan.graphs import build


@dataclass(frozen=True, kw_only=True)
class Case:
    """A graph; its key in a table begins with the pass that is meant."""

    graph: str
    constants: dict[str, float | list[float]] = field(default_factory=dict)
    opset: int = 20

    def model(self) -> ir.Model:
        arrays: dict[str, Array] = {k: np.array(v, np.float32) for k, v in self.constants.items()}
        return build(self.graph, self.opset, arrays)


CONV = "(float[N,3,6,6] x) => (float[] y) <float[4,3,3,3] w, "
GROUPED = "(float[N,4,6,6] x) => (float[] y) <float[4,3,3,3] w, "
GEMM = "(float[N,6] x) => (float[] y) <float[6,4] w, "
ROW = "(float[N,4] x) => (float[] y)"
NORM = "float[4] s, float[4] t, float[4] m, float[4] v> {"
FOUR: dict[str, float | list[float]] = {"v": [0.5, 1.0, 2.0, 3.0]}
SIX: dict[str, float | list[float]] = {"v": [0.5, 1.0, 2.0, 3.0, 4.0, 5.0]}
ERF: dict[str, float | list[float]] = {"r": 1.4142135, "one": 1.0, "half": 0.5}
TANH: dict[str, float | list[float]] = {"p": 3.0, "k": 0.044715, "r": 0.7978845608, "one": 1.0, "half": 0.5}
SWISH: dict[str, float | list[float]] = {"three": 3.0, "low": 0.0, "high": 6.0, "six": 6.0}
LN: dict[str, float | list[float]] = {"two": 2.0, "e": 1e-5}
MEANS = "a = Constant<value = int64[1] {-1}>()\n m = ReduceMean(x, a)\n d = Sub(x, m)"
ERF_FORM = "d = Div(x, r)\n e = Erf(d)\n a = Add(e, one)\n m = Mul(x, a)\n y = Mul(m, half)"
CLIP_FORM = "a = Add(x, three)\n b = Clip(a, low, high)"
BOUNDS = "<float three, float low, float high, float six>"
HALVES = "<float r, float one, float half>"

REWRITTEN = {
    "batch_norm.conv": Case(
        graph=f"{CONV}{NORM} c = Conv(x, w)\n y = BatchNormalization(c, s, t, m, v) }}", constants=FOUR
    ),
    "batch_norm.conv_with_bias": Case(
        graph=f"{CONV}float[4] b, {NORM} c = Conv(x, w, b)\n"
        " y = BatchNormalization<epsilon=0.01>(c, s, t, m, v) }",
        constants=FOUR,
    ),
    "batch_norm.grouped": Case(
        graph="""(float[N,4,6,6] x) => (float[] y) <float[6,2,3,3] w, float[6] s, float[6] v> {
            c = Conv<group=2>(x, w)
            y = BatchNormalization(c, s, s, s, v) }""",
        constants=SIX,
    ),
    "batch_norm.conv_transpose": Case(
        graph=f"{GROUPED}float[6] s, float[6] v> {{ c = ConvTranspose<group=2>(x, w)\n "
        "y = BatchNormalization(c, s, s, s, v) }",
        constants=SIX,
    ),
    "batch_norm.gemm": Case(
        graph=f"{GEMM}float[1,4] b, {NORM} c = Gemm<alpha=0.5, beta=2.0>(x, w, b)\n"
        " y = BatchNormalization(c, s, t, m, v) }",
        constants=FOUR,
    ),
    "batch_norm.shared_weight": Case(
        graph="""(float[N,4,6,6] x) => (float[] y) <float[4,4,1,1] w, float[4] s, float[4] v> {
            c = Conv(x, w)
            d = BatchNormalization(c, s, s, s, v)
            e = Conv(d, w)
            y = BatchNormalization(e, s, v, s, v) }""",
        constants=FOUR,
    ),
    "batch_norm.taken_name": Case(
        graph="""(float[N,3,6,6] x) => (float[] y)
          <float[4,3,3,3] w, float[4] s, float[4] v, float[4,6,1] w_bias> {
            c = Conv(x, w)
            d = BatchNormalization(c, s, s, s, v)
            y = Add(d, w_bias) }""",
        constants=FOUR | {"w_bias": np.arange(16.0).reshape(4, 4, 1).tolist()},
    ),
    "gemm_factors.both": Case(graph=f"{GEMM}float[4] b> {{ y = Gemm<alpha=0.5, beta=2.0>(x, w, b) }}"),
    "gemm_factors.shared_weight": Case(
        graph="""(float[N,4] x) => (float[] y) <float[4,4] w> {
            c = Gemm<alpha=0.25, transB=1>(x, w)
            y = Gemm(c, w) }"""
    ),
    "bias_add.conv": Case(graph=f"{CONV}float[4,1,1] b> {{ c = Conv(x, w)\n y = Add(c, b) }}"),
    "bias_add.subtracted": Case(
        graph=f"{CONV}float[4] a, float[1,4,1,1] b> {{ c = Conv(x, w, a)\n y = Sub(c, b) }}"
    ),
    "bias_add.gemm": Case(graph=f"{GEMM}float[4] b> {{ c = Gemm<alpha=0.5>(x, w)\n y = Add(b, c) }}"),
    "factor.conv": Case(graph=f"{CONV}float[4] a, float[1,4,1,1] b> {{ c = Conv(x, w, a)\n y = Mul(b, c) }}"),
    "factor.divided": Case(
        graph=f"{CONV}float b> {{ c = Conv(x, w)\n y = Div(c, b) }}", constants={"b": 3.0}
    ),
    "factor.conv_transpose": Case(
        graph=f"{GROUPED}float[6,1,1] b> {{ c = ConvTranspose<group=2>(x, w)\n y = Mul(c, b) }}"
    ),
    "factor.gemm_transposed": Case(
        graph="""(float[N,6] x) => (float[] y) <float[4,6] w, float[4] a, float[4] b> {
            c = Gemm<alpha=0.5, beta=2.0, transB=1>(x, w, a)
            y = Mul(c, b) }"""
    ),
    "cast.wider_and_back": Case(graph=f"{ROW} {{ a = Cast<to=11>(x)\n b = Cast<to=1>(a)\n y = Relu(b) }}"),
    "gelu.erf": Case(graph=f"{ROW} {HALVES} {{ {ERF_FORM} }}", constants=ERF),
    "gelu.erf_halved_first": Case(
        graph=f"{ROW} {HALVES} {{ h = Mul(half, x)\n d = Div(x, r)\n e = Erf(d)\n a = Add(one, e)\n"
        " y = Mul(h, a) }",
        constants=ERF,
    ),
    "gelu.tanh": Case(
        graph=f"{ROW} <float p, float k, float r, float one, float half> {{ q = Pow(x, p)\n c = Mul(q, k)\n"
        " z = Add(x, c)\n u = Mul(z, r)\n e = Tanh(u)\n a = Add(e, one)\n h = Mul(x, half)\n y = Mul(h, a) }",
        constants=TANH,
    ),
    "gelu.tanh_factored": Case(
        graph=f"{ROW} <float k, float r, float one, float half> {{ q = Mul(x, x)\n c = Mul(q, k)\n"
        " z = Add(c, one)\n rx = Mul(x, r)\n u = Mul(rx, z)\n e = Tanh(u)\n a = Add(e, one)\n b = Mul(x, a)\n"
        " y = Mul(half, b) }",
        constants=TANH,
    ),
    "hard_swish.multiplied_first": Case(
        graph=f"{ROW} {BOUNDS} {{ {CLIP_FORM}\n c = Mul(x, b)\n y = Div(c, six) }}", constants=SWISH
    ),
    "hard_swish.divided_first": Case(
        graph=f"{ROW} {BOUNDS} {{ {CLIP_FORM}\n c = Div(b, six)\n y = Mul(c, x) }}", constants=SWISH, opset=14
    ),
    "hard_swish.hard_sigmoid": Case(
        graph=f"{ROW} {{ a = HardSigmoid<alpha=0.16666667, beta=0.5>(x)\n y = Mul(x, a) }}"
    ),
    "hard_sigmoid.conv": Case(
        graph="(float[N,3,6,6] x) => (float[] y) <float[4,3,3,3] w, float[4] b> "
        "{ c = Conv(x, w, b)\n y = HardSigmoid<alpha=0.16666667>(c) }"
    ),
    "hard_sigmoid.gemm_without_bias": Case(
        graph="(float[N,6] x) => (float[] y) <float[6,4] w> { c = Gemm(x, w)\n y = HardSigmoid(c) }"
    ),
    "silu.opset_24": Case(graph=f"{ROW} {{ a = Sigmoid(x)\n y = Mul(a, x) }}", opset=24),
    "layer_norm.with_scale_and_bias": Case(
        graph=f"(float[N,3,4] x) => (float[] y) <float two, float e, float[4] g, float[4] b> {{ {MEANS}\n"
        " q = Pow(d, two)\n v = ReduceMean(q, a)\n f = Add(v, e)\n s = Sqrt(f)\n n = Div(d, s)\n"
        " h = Mul(n, g)\n y = Add(b, h) }",
        constants=LN,
    ),
    "layer_norm.bare": Case(
        graph=f"(float[N,3,4] x) => (float[] y) <float e> {{ {MEANS}\n q = Mul(d, d)\n v = ReduceMean(q, a)\n"
        " f = Add(e, v)\n s = Sqrt(f)\n r = Reciprocal(s)\n y = Mul(r, d) }",
        constants=LN,
    ),
    "layer_norm.two_axes": Case(
        graph="""(float[N,3,4] x) => (float[] y) <float two, float e, float[3,4] g> {
            m = ReduceMean<axes=[1, 2]>(x)
            d = Sub(x, m)
            d2 = Sub(x, m)
            q = Pow(d2, two)
            v = ReduceMean<axes=[1, 2]>(q)
            f = Add(v, e)
            s = Sqrt(f)
            n = Div(d, s)
            y = Mul(n, g) }""",
        constants=LN,
        opset=17,
    ),
}
