"""Small graphs that a pass makes a MatMul, a pooling or a quotient of, or folds a factor into."""

from tests.unit.models.preparing.passes.cases import Case

PRODUCTS = {
    "einsum.weight": Case(
        "einsum",
        """(float[N,3,4] x) => (float[] y) <float[4,6] w> { y = Einsum<equation="nsi, io -> nso">(x, w) }""",
        ("MatMul",),
    ),
    "einsum.weight_first": Case(
        "einsum",
        """(float[N,3,4] x) => (float[] y) <float[6,4] w> { y = Einsum<equation="oi,nsi->nos">(w, x) }""",
        ("MatMul", "Transpose"),
    ),
    "einsum.heads_made": Case(
        "einsum",
        """(float[N,3,4] x) => (float[] y) <float[4,2,5] w> { y = Einsum<equation="nsi,ihd->nhsd">(x, w) }""",
        ("MatMul", "Reshape", "Transpose"),
    ),
    "einsum.heads_joined": Case(
        "einsum",
        """(float[N,3,2,5] x) => (float[] y) <float[2,5,4] w> {
            y = Einsum<equation="nshd,hdo->nso">(x, w) }""",
        ("Reshape", "MatMul"),
    ),
    "einsum.scores": Case(
        "einsum",
        """(float[N,3,2,5] x, float[N,6,2,5] z) => (float[] y) {
            y = Einsum<equation="nqhd,nkhd->nhqk">(x, z) }""",
        ("Transpose", "Transpose", "MatMul"),
    ),
    "einsum.mixed": Case(
        "einsum",
        """(float[N,2,3,6] x, float[N,6,2,5] z) => (float[] y) {
            y = Einsum<equation="nhqk,nkhd->nqhd">(x, z) }""",
        ("Transpose", "MatMul", "Transpose"),
    ),
    "matmul_left.rows": Case(
        "matmul_left",
        """(float[N,4,5] x) => (float[] y) <float[6,4] w> { y = MatMul(w, x) }""",
        ("Transpose", "MatMul", "Transpose"),
    ),
    "matmul_left.behind_a_transpose": Case(
        "matmul_left",
        """(float[N,2,5,4] x) => (float[] y) <float[6,4] w> {
            t = Transpose<perm=[0,1,3,2]>(x)
            y = MatMul(w, t) }""",
        ("MatMul", "Transpose"),
    ),
    "matmul_left.behind_another_transpose": Case(
        "matmul_left",
        """(float[4,5,N] x) => (float[] y) <float[6,5] w> {
            t = Transpose(x)
            y = MatMul(w, t) }""",
        ("Transpose", "MatMul", "Transpose"),
    ),
    "matmul_left.batch_of_matrices": Case(
        "matmul_left",
        """(float[N,3,4,5] x) => (float[] y) <float[3,6,4] w> { y = MatMul(w, x) }""",
        ("Transpose", "MatMul", "Transpose"),
    ),
    "matmul_left.more_axes_than_the_other": Case(
        "matmul_left",
        """(float[4,N] x) => (float[] y) <float[3,6,4] w> { y = MatMul(w, x) }""",
        ("Transpose", "MatMul", "Transpose"),
    ),
    "mean_pool.kept_axes": Case(
        "mean_pool",
        "(float[N,3,5,6] x) => (float[] y) <int64[2] k = {2,3}> { y = ReduceMean(x, k) }",
        ("GlobalAveragePool",),
    ),
    "mean_pool.axes_gone": Case(
        "mean_pool",
        "(float[N,3,5,6] x) => (float[] y) { y = ReduceMean<axes=[-1,-2], keepdims=0>(x) }",
        ("GlobalAveragePool", "Reshape"),
        opset=17,
    ),
    "mean_pool.volume": Case(
        "mean_pool",
        "(float[N,3,2,5,6] x) => (float[] y) <int64[3] k = {2,3,4}> { y = ReduceMean(x, k) }",
        ("GlobalAveragePool",),
    ),
    "matmul_factor.layer_scale": Case(
        "matmul_factor",
        "(float[N,3,4] x) => (float[] y) <float[4,6] w, float[6] b, float[6] k> "
        "{ m = MatMul(x, w)\n a = Add(m, b)\n y = Mul(k, a) }",
        ("MatMul", "Add"),
    ),
    "matmul_factor.divided": Case(
        "matmul_factor",
        "(float[N,3,4] x) => (float[] y) <float[4,6] w, float[1,1] k> { m = MatMul(x, w)\n y = Div(m, k) }",
        ("MatMul",),
        {"k": [[4.0]]},
    ),
    "matmul_factor.bias_of_one_element": Case(
        "matmul_factor",
        "(float[N,3,4] x) => (float[] y) <float[4,6] w, float b, float[1,6] k> "
        "{ m = MatMul(x, w)\n a = Add(b, m)\n y = Mul(a, k) }",
        ("MatMul", "Add"),
        {"b": 0.7},
    ),
    "reciprocal.rms": Case(
        "reciprocal",
        "(float[N,3,4] x) => (float[] y) <float e, int64[1] k = {-1}> { q = Mul(x, x)\n"
        " m = ReduceMean(q, k)\n f = Add(m, e)\n s = Sqrt(f)\n r = Reciprocal(s)\n y = Mul(x, r) }",
        ("Mul", "ReduceMean", "Add", "Sqrt", "Div"),
        {"e": 1e-5},
    ),
    "reciprocal.power": Case(
        "reciprocal",
        "(float[N,3,4] x) => (float[] y) <float e, float h, int64[1] k = {-1}> { q = Mul(x, x)\n"
        " m = ReduceMean(q, k)\n f = Add(m, e)\n r = Pow(f, h)\n y = Mul(r, x) }",
        ("Mul", "ReduceMean", "Add", "Sqrt", "Div"),
        {"e": 1e-5, "h": -0.5},
    ),
}
