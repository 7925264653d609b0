"""Outputs, shared constants, nested graphs: what breaks passes."""

from tests.unit.plan.cases.case import COST, Case, image, layer

ODD = {
    "shared_weight": Case(
        graph=layer(
            "float[N,8] x", "float[8,8] w, float[8] b", "h = Gemm(x, w, b) r = Relu(h) y = Gemm(r, w, b)"
        ),
        integer="h r y",
    ),
    "shared_weight_on_two_axes": Case(
        graph=layer("float[N,8] x", "float[8,8] w", "h = Gemm<transB=1>(x, w)", "y = Gemm(h, w)"),
        integer="h y",
    ),
    "weight_read_by_a_float_operator": Case(
        graph="(float[N,8] x) => (float[] y, float[] z) <float[8,8] w> { y = Gemm(x, w)\n z = Mul(w, w) }",
        integer="y",
        floats={"z": COST},
    ),
    "output_that_is_read": Case(
        graph=image("a = Identity(c)", output="float[] c, float[] y"), integer="c a y", shared={"a": "c"}
    ),
    "output_behind_a_relu": Case(
        graph=image("a = Relu(c)", output="float[] c, float[] y"),
        integer="c y",
        floats={"a": "disappears into the quantized range"},
    ),
    "bias_add_whose_product_is_an_output": Case(
        graph="(float[N,8] x) => (float[] m, float[] y) <float[8,8] w, float[8] b> "
        "{ m = MatMul(x, w)\n y = Add(m, b) }",
        integer="m",
        floats={"y": COST},
    ),
    "input_that_is_an_output": Case(
        graph="(float[N,3,8,8] x) => (float[] y, float[N,3,8,8] x) <float[3,3,1,1] w> { y = Conv(x, w) }",
        integer="y",
    ),
    "weight_that_is_an_output": Case(
        graph="(float[N,3,8,8] x) => (float[] y, float[3,3,1,1] w) <float[3,3,1,1] w> { y = Conv(x, w) }",
        integer="y",
    ),
    "bias_that_is_an_output": Case(
        graph="(float[N,3,8,8] x) => (float[] y, float[3] b) <float[3,3,1,1] w, float[3] b> "
        "{ y = Conv(x, w, b) }",
        integer="y",
    ),
    "product_read_behind_a_relu_and_beside_it": Case(
        graph="(float[N,8] x) => (float[] y, float[] z) <float[8,8] w, float[8] b> "
        "{ g = Gemm(x, w, b)\n r = Relu(g)\n z = Tanh(g)\n y = MatMul(r, w) }",
        integer="g y",
        floats={"r": "disappears into the quantized range", "z": "Tanh"},
    ),
    "product_that_is_an_output_and_read_behind_a_relu": Case(
        graph="(float[N,3,8] x) => (float[] y, float[] m) <float[8,8] w> "
        "{ m = MatMul(x, w)\n r = Relu(m)\n y = MatMul(r, w) }",
        integer="m y",
        floats={"r": "disappears into the quantized range"},
    ),
    "relu_before_a_float_operator": Case(
        graph="(float[N,8] x) => (float[] y) <float[8,8] w, float[8] b, float[8] s, float[8] t> "
        "{ g = Gemm(x, w, b)\n r = Relu(g)\n y = LayerNormalization(r, s, t) }",
        integer="g r",
        floats={"y": "LayerNormalization"},
    ),
    "relu_of_an_output_before_a_float_operator": Case(
        graph="(float[N,3,8] x) => (float[] y, float[] g) <float[8,8] w, float[8] s, float[8] t> "
        "{ g = MatMul(x, w)\n r = Relu(g)\n y = LayerNormalization(r, s, t) }",
        integer="g",
        floats={"r": "its result is not quantized", "y": "LayerNormalization"},
    ),
    "clip_to_positive_before_a_float_operator": Case(
        graph="(float[N,8] x) => (float[] y) <float[8,8] w, float low = {0.1}> "
        "{ g = Gemm(x, w)\n r = Clip(g, low)\n y = Tanh(r) }",
        integer="g",
        floats={"r": "its bound 'low' excludes 0", "y": "Tanh"},
    ),
    "other_domain": Case(
        graph="(float[N,3,8,8] x) => (float[N,3,8,8] y) <float[3,3,1,1] w> "
        "{ c = Conv(x, w)\n y = com.microsoft.Gelu(c) }",
        integer="c",
        floats={"y": "no rule for Gelu"},
    ),
    "float_relu_read_twice": Case(
        graph=layer(
            "float[N,16] x",
            "float[16,16] w",
            "t = Tanh(x) r = Relu(t) m = Gemm(r, w) n = Gemm(t, w) y = Add(m, n)",
        ),
        integer="m n",
        floats={"t": "Tanh", "r": "disappears into the quantized range", "y": COST},
    ),
    "if_reads_values_around_it": Case(
        graph="""(float[N,3,8,8] x, bool k) => (float[] y) <float[3,3,1,1] w> { c = Conv(x, w)
            r = Relu(c)
            z = If(k) <then_branch = t () => (float[N,3,8,8] p) { p = Identity(c) },
                       else_branch = e () => (float[N,3,8,8] q) { s = Add(r, x)
                            q = Conv(s, w) }>
            y = Conv(z, w) }""",
        integer="c s q y",
        floats={
            "r": "disappears into the quantized range",
            "z": "runs the layers of its nested graph",
            "p": "no integer operator reads it",
        },
    ),
    "loop_reads_a_weight": Case(
        graph="""(float[2,4] x, int64 n, bool k) => (float[2,4] y) <float[4,4] w> { h = MatMul(x, w)
            y = Loop(n, k, h) <body = b (int64 i, bool going, float[2,4] s) => (bool more, float[2,4] t) {
                more = Identity(going)
                t = MatMul(s, w) }> }""",
        integer="h t",
        floats={"y": "runs the layers of its nested graph", "more": "computes bool"},
    ),
}
