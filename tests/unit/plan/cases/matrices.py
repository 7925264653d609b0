"""Gemm and MatMul, with and without a bias."""

from tests.unit.plan.cases.case import COST, Case, layer

MATRIX = {
    "gemm": Case(graph=layer("float[N,8] x", "float[8,4] w, float[4] b", "y = Gemm(x, w, b)"), integer="y"),
    "gemm_transposed_weight": Case(
        graph=layer("float[N,8] x", "float[4,8] w, float[4] b", "y = Gemm<transB=1>(x, w, b)"), integer="y"
    ),
    "gemm_transposed_input": Case(
        graph=layer("float[8,6] x", "float[8,4] w, float[4] b", "y = Gemm<transA=1>(x, w, b)"), integer="y"
    ),
    "gemm_without_bias": Case(graph=layer("float[N,8] x", "float[8,4] w", "y = Gemm(x, w)"), integer="y"),
    "gemm_bias_of_one_element": Case(
        graph=layer("float[N,8] x", "float[8,4] w, float[1] b", "y = Gemm(x, w, b)"), integer="y"
    ),
    "gemm_scalar_bias": Case(
        graph=layer("float[N,8] x", "float[8,4] w, float b = {0.5}", "y = Gemm(x, w, b)"), integer="y"
    ),
    "gemm_row_bias": Case(
        graph=layer("float[N,8] x", "float[8,4] w, float[1,4] b", "y = Gemm(x, w, b)"), integer="y"
    ),
    "gemm_relu_gemm": Case(
        graph=layer(
            "float[N,8] x",
            "float[8,4] w, float[4] b, float[4,4] v",
            "h = Gemm(x, w, b) r = Relu(h) y = Gemm(r, v)",
        ),
        integer="h r y",
    ),
    "gemm_relu": Case(
        graph=layer("float[N,8] x", "float[8,4] w, float[4] b", "h = Gemm(x, w, b)", "y = Relu(h)"),
        integer="h",
        floats={"y": "its result is not quantized"},
    ),
    "gemm_alpha": Case(
        graph=layer(
            "float[N,8] x",
            "float[8,4] w, float[4] b, float[4,4] v",
            "h = Gemm<alpha=0.5>(x, w, b) y = MatMul(h, v)",
        ),
        integer="y",
        floats={"h": "alpha is 0.5, the integer kernel needs 1"},
    ),
    "gemm_beta": Case(
        graph=layer(
            "float[N,8] x",
            "float[8,4] w, float[4] b, float[4,4] v",
            "h = Gemm<beta=2.0>(x, w, b) y = MatMul(h, v)",
        ),
        integer="y",
        floats={"h": "beta is 2, the integer kernel needs 1"},
    ),
    "gemm_full_bias": Case(
        graph=layer(
            "float[2,8] x", "float[8,4] w, float[2,4] b, float[4,4] v", "h = Gemm(x, w, b) y = MatMul(h, v)"
        ),
        integer="y",
        floats={"h": "its bias 'b' is not a vector over the output channels"},
    ),
    "gemm_transpose": Case(
        graph=layer("float[N,8] x", "float[8,4] w", "h = Gemm(x, w)", "y = Transpose<perm=[1,0]>(h)"),
        integer="h",
        floats={"y": COST},
    ),
    "gemm_sum": Case(
        graph=layer("float[N,8] x, float[N,4] z", "float[8,4] w", "h = Gemm(x, w)", "y = Sum(h, z)"),
        integer="h",
        floats={"y": "no rule for Sum"},
    ),
    "gemm_add": Case(
        graph=layer("float[N,8] x, float[N,4] z", "float[8,4] w", "h = Gemm(x, w)", "y = Add(h, z)"),
        integer="h",
        floats={"y": COST},
    ),
    "matmul": Case(graph=layer("float[N,5,8] x", "float[8,4] w", "y = MatMul(x, w)"), integer="y"),
    "matmul_bias": Case(
        graph=layer("float[N,5,8] x", "float[8,4] w, float[4] b", "m = MatMul(x, w)", "y = Add(m, b)"),
        integer="m",
        floats={"y": "bias of m, added to its float result"},
    ),
    "matmul_bias_fixed_shape": Case(
        graph=layer("float[2,5,8] x", "float[8,4] w, float[4] b", "m = MatMul(x, w)", "y = Add(b, m)"),
        integer="m y",
    ),
    "matmul_bias_2d": Case(
        graph=layer("float[N,8] x", "float[8,4] w, float[4] b", "m = MatMul(x, w)", "y = Add(m, b)"),
        integer="m y",
    ),
    "matmul_row_bias_2d": Case(
        graph=layer("float[N,8] x", "float[8,4] w, float[1,4] b", "m = MatMul(x, w)", "y = Add(m, b)"),
        integer="m y",
    ),
    "matmul_bias_that_adds_an_axis": Case(
        graph=layer("float[8] x", "float[8,4] w, float[1,4] b", "m = MatMul(x, w)", "y = Add(m, b)"),
        integer="m",
        floats={"y": COST},
    ),
    "matmul_column_2d": Case(
        graph=layer("float[3,8] x", "float[8,4] w, float[3,1] b", "m = MatMul(x, w)", "y = Add(m, b)"),
        integer="m",
        floats={"y": COST},
    ),
    "matmul_scalar_2d": Case(
        graph=layer("float[N,8] x", "float[8,4] w, float[1] b", "m = MatMul(x, w)", "y = Add(m, b)"),
        integer="m",
        floats={"y": COST},
    ),
    "matmul_residual_2d": Case(
        graph=layer("float[N,8] x", "float[8,8] w", "m = MatMul(x, w)", "y = Add(x, m)"),
        integer="m",
        floats={"y": COST},
    ),
    "matmul_pair_2d": Case(
        graph=layer(
            "float[N,8] x", "float[8,8] w, float[8,8] v", "m = MatMul(x, w) n = MatMul(x, v) y = Add(m, n)"
        ),
        integer="m n",
        floats={"y": COST},
    ),
    "matmul_residual_3d": Case(
        graph=layer("float[2,5,8] x", "float[8,8] w", "m = MatMul(x, w)", "y = Add(m, x)"),
        integer="m",
        floats={"y": COST},
    ),
    "matmul_bias_relu_matmul": Case(
        graph=layer(
            "float[N,5,8] x",
            "float[8,4] w, float[4] b, float[4,4] v",
            "m = MatMul(x, w) s = Add(b, m) r = Relu(s) y = MatMul(r, v)",
        ),
        integer="m y",
        floats={"s": "bias of m, added to its float result", "r": "disappears into the quantized range"},
    ),
    "matmul_bias_relu_matmul_2d": Case(
        graph=layer(
            "float[N,8] x",
            "float[8,4] w, float[4] b, float[4,4] v",
            "m = MatMul(x, w) s = Add(b, m) r = Relu(s) y = MatMul(r, v)",
        ),
        integer="m s r y",
    ),
    "matmul_of_activations": Case(
        graph=layer("float[N,5,8] x, float[N,8,5] z", "", "y = MatMul(x, z)").replace("<>", ""), integer="y"
    ),
    "matmul_of_activations_plus_bias": Case(
        graph=layer("float[4,8] x, float[8,4] z", "float[4] b", "m = MatMul(x, z)", "y = Add(m, b)"),
        integer="m",
        floats={"y": COST},
    ),
    "matmul_constant_left": Case(
        graph=layer("float[N,8,5] x", "float[6,8] k, float[5,4] w", "m = MatMul(k, x)", "y = MatMul(m, w)"),
        integer="y",
        floats={"m": "reads the constant 'k'"},
    ),
    "matmul_batched_weight": Case(
        graph=layer("float[2,5,8] x", "float[2,8,4] w", "y = MatMul(x, w)"), integer="y"
    ),
    "matmul_vector_weight": Case(
        graph=layer("float[N,5,8] x", "float[8] w", "y = MatMul(x, w)"), integer="y"
    ),
    "matmul_vector_input": Case(
        graph=layer("float[8] x", "float[8,4] w, float[4] b", "m = MatMul(x, w)", "y = Add(m, b)"),
        integer="m y",
    ),
    "matmul_of_integers": Case(
        graph="(int32[N,4] i) => (int32[] y, float[] z) <int32[4,2] e = {1,2,3,4,5,6,7,8}, float[4,4] w> "
        "{ y = MatMul(i, e)\n f = Cast<to=1>(i)\n z = MatMul(f, w) }",
        integer="z",
        floats={"y": "'i' is int32, not float", "f": "no integer Cast"},
    ),
    "matmul_of_doubles": Case(
        graph="(double[N,4] x) => (double[] y, float[] z) <double[4,2] e = {1,2,3,4,5,6,7,8}, float[4,4] w> "
        "{ y = MatMul(x, e)\n f = Cast<to=1>(x)\n z = MatMul(f, w) }",
        integer="z",
        floats={"y": "'x' is double, not float", "f": "no integer Cast"},
    ),
    "matmul_of_float16": Case(
        graph="(float16[N,4] x) => (float16[] y, float[] z) "
        "<float16[4,2] e = {1,2,3,4,5,6,7,8}, float[4,4] w> "
        "{ y = MatMul(x, e)\n f = Cast<to=1>(x)\n z = MatMul(f, w) }",
        integer="z",
        floats={"y": "'x' is float16, not float", "f": "no integer Cast"},
    ),
    "embedding": Case(
        graph=layer("int64[N,4] i", "float[4,8] e, float[8,8] w", "g = Gather(e, i)", "y = MatMul(g, w)"),
        integer="y",
        floats={"g": "looks up rows of the table 'e'"},
    ),
}
