"""Gemm and MatMul, with and without a bias."""

from tests.unit.plan.cases.case import COST, Case, layer

MATRIX = {
    "gemm": Case(layer("float[N,8] x", "float[8,4] w, float[4] b", "y = Gemm(x, w, b)"), "y"),
    "gemm_transposed_weight": Case(
        layer("float[N,8] x", "float[4,8] w, float[4] b", "y = Gemm<transB=1>(x, w, b)"), "y"
    ),
    "gemm_transposed_input": Case(
        layer("float[8,6] x", "float[8,4] w, float[4] b", "y = Gemm<transA=1>(x, w, b)"), "y"
    ),
    "gemm_without_bias": Case(layer("float[N,8] x", "float[8,4] w", "y = Gemm(x, w)"), "y"),
    "gemm_bias_of_one_element": Case(
        layer("float[N,8] x", "float[8,4] w, float[1] b", "y = Gemm(x, w, b)"), "y"
    ),
    "gemm_scalar_bias": Case(
        layer("float[N,8] x", "float[8,4] w, float b = {0.5}", "y = Gemm(x, w, b)"), "y"
    ),
    "gemm_row_bias": Case(layer("float[N,8] x", "float[8,4] w, float[1,4] b", "y = Gemm(x, w, b)"), "y"),
    "gemm_relu_gemm": Case(
        layer(
            "float[N,8] x",
            "float[8,4] w, float[4] b, float[4,4] v",
            "h = Gemm(x, w, b)",
            "r = Relu(h)",
            "y = Gemm(r, v)",
        ),
        "h r y",
    ),
    "gemm_relu": Case(
        layer("float[N,8] x", "float[8,4] w, float[4] b", "h = Gemm(x, w, b)", "y = Relu(h)"),
        "h",
        {"y": "its result is not quantized"},
    ),
    "gemm_alpha": Case(
        layer(
            "float[N,8] x",
            "float[8,4] w, float[4] b, float[4,4] v",
            "h = Gemm<alpha=0.5>(x, w, b)",
            "y = MatMul(h, v)",
        ),
        "y",
        {"h": "alpha is 0.5, the integer kernel needs 1"},
    ),
    "gemm_beta": Case(
        layer(
            "float[N,8] x",
            "float[8,4] w, float[4] b, float[4,4] v",
            "h = Gemm<beta=2.0>(x, w, b)",
            "y = MatMul(h, v)",
        ),
        "y",
        {"h": "beta is 2, the integer kernel needs 1"},
    ),
    "gemm_full_bias": Case(
        layer(
            "float[2,8] x",
            "float[8,4] w, float[2,4] b, float[4,4] v",
            "h = Gemm(x, w, b)",
            "y = MatMul(h, v)",
        ),
        "y",
        {"h": "its bias 'b' is no vector over the output channels"},
    ),
    "gemm_transpose": Case(
        layer("float[N,8] x", "float[8,4] w", "h = Gemm(x, w)", "y = Transpose<perm=[1,0]>(h)"),
        "h",
        {"y": COST},
    ),
    "gemm_sum": Case(
        layer("float[N,8] x, float[N,4] z", "float[8,4] w", "h = Gemm(x, w)", "y = Sum(h, z)"),
        "h",
        {"y": "no rule for Sum"},
    ),
    "gemm_add": Case(
        layer("float[N,8] x, float[N,4] z", "float[8,4] w", "h = Gemm(x, w)", "y = Add(h, z)"),
        "h",
        {"y": COST},
    ),
    "matmul": Case(layer("float[N,5,8] x", "float[8,4] w", "y = MatMul(x, w)"), "y"),
    "matmul_bias": Case(
        layer("float[N,5,8] x", "float[8,4] w, float[4] b", "m = MatMul(x, w)", "y = Add(m, b)"),
        "m",
        {"y": "bias of m, added to its float result"},
    ),
    "matmul_bias_fixed_shape": Case(
        layer("float[2,5,8] x", "float[8,4] w, float[4] b", "m = MatMul(x, w)", "y = Add(b, m)"), "m y"
    ),
    "matmul_bias_2d": Case(
        layer("float[N,8] x", "float[8,4] w, float[4] b", "m = MatMul(x, w)", "y = Add(m, b)"), "m y"
    ),
    "matmul_row_bias_2d": Case(
        layer("float[N,8] x", "float[8,4] w, float[1,4] b", "m = MatMul(x, w)", "y = Add(m, b)"), "m y"
    ),
    "matmul_bias_that_adds_an_axis": Case(
        layer("float[8] x", "float[8,4] w, float[1,4] b", "m = MatMul(x, w)", "y = Add(m, b)"),
        "m",
        {"y": COST},
    ),
    "matmul_column_2d": Case(
        layer("float[3,8] x", "float[8,4] w, float[3,1] b", "m = MatMul(x, w)", "y = Add(m, b)"),
        "m",
        {"y": COST},
    ),
    "matmul_scalar_2d": Case(
        layer("float[N,8] x", "float[8,4] w, float[1] b", "m = MatMul(x, w)", "y = Add(m, b)"),
        "m",
        {"y": COST},
    ),
    "matmul_residual_2d": Case(
        layer("float[N,8] x", "float[8,8] w", "m = MatMul(x, w)", "y = Add(x, m)"), "m", {"y": COST}
    ),
    "matmul_pair_2d": Case(
        layer(
            "float[N,8] x",
            "float[8,8] w, float[8,8] v",
            "m = MatMul(x, w)",
            "n = MatMul(x, v)",
            "y = Add(m, n)",
        ),
        "m n",
        {"y": COST},
    ),
    "matmul_residual_3d": Case(
        layer("float[2,5,8] x", "float[8,8] w", "m = MatMul(x, w)", "y = Add(m, x)"), "m", {"y": COST}
    ),
    "matmul_bias_relu_matmul": Case(
        layer(
            "float[N,5,8] x",
            "float[8,4] w, float[4] b, float[4,4] v",
            "m = MatMul(x, w)",
            "s = Add(b, m)",
            "r = Relu(s)",
            "y = MatMul(r, v)",
        ),
        "m y",
        {"s": "bias of m, added to its float result", "r": "disappears into the quantized range"},
    ),
    "matmul_bias_relu_matmul_2d": Case(
        layer(
            "float[N,8] x",
            "float[8,4] w, float[4] b, float[4,4] v",
            "m = MatMul(x, w)",
            "s = Add(b, m)",
            "r = Relu(s)",
            "y = MatMul(r, v)",
        ),
        "m s r y",
    ),
    "matmul_of_activations": Case(
        layer("float[N,5,8] x, float[N,8,5] z", "", "y = MatMul(x, z)").replace("<>", ""), "y"
    ),
    "matmul_of_activations_plus_bias": Case(
        layer("float[4,8] x, float[8,4] z", "float[4] b", "m = MatMul(x, z)", "y = Add(m, b)"),
        "m",
        {"y": COST},
    ),
    "matmul_constant_left": Case(
        layer("float[N,8,5] x", "float[6,8] k, float[5,4] w", "m = MatMul(k, x)", "y = MatMul(m, w)"),
        "y",
        {"m": "reads the constant 'k'"},
    ),
    "matmul_batched_weight": Case(layer("float[2,5,8] x", "float[2,8,4] w", "y = MatMul(x, w)"), "y"),
    "matmul_vector_weight": Case(layer("float[N,5,8] x", "float[8] w", "y = MatMul(x, w)"), "y"),
    "matmul_vector_input": Case(
        layer("float[8] x", "float[8,4] w, float[4] b", "m = MatMul(x, w)", "y = Add(m, b)"), "m y"
    ),
    "matmul_of_integers": Case(
        "(int32[N,4] i) => (int32[] y, float[] z) <int32[4,2] e = {1,2,3,4,5,6,7,8}, float[4,4] w> "
        "{ y = MatMul(i, e)\n f = Cast<to=1>(i)\n z = MatMul(f, w) }",
        "z",
        {"y": "'i' is int32, not float", "f": "no integer Cast"},
    ),
    "matmul_of_doubles": Case(
        "(double[N,4] x) => (double[] y, float[] z) <double[4,2] e = {1,2,3,4,5,6,7,8}, float[4,4] w> "
        "{ y = MatMul(x, e)\n f = Cast<to=1>(x)\n z = MatMul(f, w) }",
        "z",
        {"y": "'x' is double, not float", "f": "no integer Cast"},
    ),
    "matmul_of_float16": Case(
        "(float16[N,4] x) => (float16[] y, float[] z) <float16[4,2] e = {1,2,3,4,5,6,7,8}, float[4,4] w> "
        "{ y = MatMul(x, e)\n f = Cast<to=1>(x)\n z = MatMul(f, w) }",
        "z",
        {"y": "'x' is float16, not float", "f": "no integer Cast"},
    ),
    "embedding": Case(
        layer("int64[N,4] i", "float[4,8] e, float[8,8] w", "g = Gather(e, i)", "y = MatMul(g, w)"),
        "y",
        {"g": "takes rows of the table 'e'"},
    ),
}
