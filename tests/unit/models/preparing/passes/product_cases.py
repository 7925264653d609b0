"""Small graphs that a pass makes a MatMul, a pooling or a quotient of, or folds a factor into."""

from tests.unit.models.preparing.passes.cases import Case

PRODUCTS = {
    "einsum.weight": Case(
        graph="(float[N,3,4] x) => (float[] y) <float[4,6] w> "
        '{ y = Einsum<equation="nsi, io -> nso">(x, w) }',
        left=("MatMul",),
    ),
    "einsum.weight_first": Case(
        graph='(float[N,3,4] x) => (float[] y) <float[6,4] w> { y = Einsum<equation="oi,nsi->nos">(w, x) }',
        left=("MatMul", "Transpose"),
    ),
    "einsum.heads_made": Case(
        graph="(float[N,3,4] x) => (float[] y) <float[4,2,5] w> "
        '{ y = Einsum<equation="nsi,ihd->nhsd">(x, w) }',
        left=("MatMul", "Reshape", "Transpose"),
    ),
    "einsum.heads_joined": Case(
        graph="""(float[N,3,2,5] x) => (float[] y) <float[2,5,4] w> {
            y = Einsum<equation="nshd,hdo->nso">(x, w) }""",
        left=("Reshape", "MatMul"),
    ),
    "einsum.scores": Case(
        graph="""(float[N,3,2,5] x, float[N,6,2,5] z) => (float[] y) {
            y = Einsum<equation="nqhd,nkhd->nhqk">(x, z) }""",
        left=("Transpose", "Transpose", "MatMul"),
    ),
    "einsum.mixed": Case(
        graph="""(float[N,2,3,6] x, float[N,6,2,5] z) => (float[] y) {
            y = Einsum<equation="nhqk,nkhd->nqhd">(x, z) }""",
        left=("Transpose", "MatMul", "Transpose"),
    ),
    "matmul_left.rows": Case(
        graph="""(float[N,4,5] x) => (float[] y) <float[6,4] w> { y = MatMul(w, x) }""",
        left=("Transpose", "MatMul", "Transpose"),
    ),
    "matmul_left.behind_a_transpose": Case(
        graph="""(float[N,2,5,4] x) => (float[] y) <float[6,4] w> {
            t = Transpose<perm=[0,1,3,2]>(x)
            y = MatMul(w, t) }""",
        left=("MatMul", "Transpose"),
    ),
    "matmul_left.behind_another_transpose": Case(
        graph="""(float[4,5,N] x) => (float[] y) <float[6,5] w> {
            t = Transpose(x)
            y = MatMul(w, t) }""",
        left=("Transpose", "MatMul", "Transpose"),
    ),
    "matmul_left.batch_of_matrices": Case(
        graph="""(float[N,3,4,5] x) => (float[] y) <float[3,6,4] w> { y = MatMul(w, x) }""",
        left=("Transpose", "MatMul", "Transpose"),
    ),
    "matmul_left.more_axes_than_the_other": Case(
        graph="""(float[4,N] x) => (float[] y) <float[3,6,4] w> { y = MatMul(w, x) }""",
        left=("Transpose", "MatMul", "Transpose"),
    ),
    "mean_pool.kept_axes": Case(
        graph="(float[N,3,5,6] x) => (float[] y) <int64[2] k = {2,3}> { y = ReduceMean(x, k) }",
        left=("GlobalAveragePool",),
    ),
    "mean_pool.axes_gone": Case(
        graph="(float[N,3,5,6] x) => (float[] y) { y = ReduceMean<axes=[-1,-2], keepdims=0>(x) }",
        left=("GlobalAveragePool", "Reshape"),
        opset=17,
    ),
    "mean_pool.volume": Case(
        graph="(float[N,3,2,5,6] x) => (float[] y) <int64[3] k = {2,3,4}> { y = ReduceMean(x, k) }",
        left=("GlobalAveragePool",),
    ),
    "matmul_factor.layer_scale": Case(
        graph="(float[N,3,4] x) => (float[] y) <float[4,6] w, float[6] b, float[6] k> "
        "{ m = MatMul(x, w)\n a = Add(m, b)\n y = Mul(k, a) }",
        left=("MatMul", "Add"),
    ),
    "matmul_factor.divided": Case(
        graph="(float[N,3,4] x) => (float[] y) <float[4,6] w, float[1,1] k> { m = MatMul(x, w)\n"
        " y = Div(m, k) }",
        left=("MatMul",),
        constants={"k": [[4.0]]},
    ),
    "matmul_factor.bias_of_one_element": Case(
        graph="(float[N,3,4] x) => (float[] y) <float[4,6] w, float b, float[1,6] k> "
        "{ m = MatMul(x, w)\n a = Add(b, m)\n y = Mul(a, k) }",
        left=("MatMul", "Add"),
        constants={"b": 0.7},
    ),
    "reciprocal.rms": Case(
        graph="(float[N,3,4] x) => (float[] y) <float e, int64[1] k = {-1}> { q = Mul(x, x)\n"
        " m = ReduceMean(q, k)\n f = Add(m, e)\n s = Sqrt(f)\n r = Reciprocal(s)\n y = Mul(x, r) }",
        left=("Mul", "ReduceMean", "Add", "Sqrt", "Div"),
        constants={"e": 1e-5},
    ),
    "reciprocal.power": Case(
        graph="(float[N,3,4] x) => (float[] y) <float e, float h, int64[1] k = {-1}> { q = Mul(x, x)\n"
        " m = ReduceMean(q, k)\n f = Add(m, e)\n r = Pow(f, h)\n y = Mul(r, x) }",
        left=("Mul", "ReduceMean", "Add", "Sqrt", "Div"),
        constants={"e": 1e-5, "h": -0.5},
    ),
}
