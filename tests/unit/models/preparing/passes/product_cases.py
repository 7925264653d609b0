"""Further small graphs: of products, pools, quotients, named axes and constant conditions."""

from tests.unit.models.preparing.passes.cases import ROW, Case

PRODUCTS = {
    "einsum.weight": Case(
        graph='(float[N,3,4] x) => (float[] y) <float[4,6] w> { y = Einsum<equation="nsi, io -> nso">(x, w) }'
    ),
    "einsum.weight_first": Case(
        graph='(float[N,3,4] x) => (float[] y) <float[6,4] w> { y = Einsum<equation="oi,nsi->nos">(w, x) }'
    ),
    "einsum.heads_made": Case(
        graph="(float[N,3,4] x) => (float[] y) <float[4,2,5] w> "
        '{ y = Einsum<equation="nsi,ihd->nhsd">(x, w) }'
    ),
    "einsum.heads_joined": Case(
        graph="""(float[N,3,2,5] x) => (float[] y) <float[2,5,4] w> {
            y = Einsum<equation="nshd,hdo->nso">(x, w) }"""
    ),
    "einsum.scores": Case(
        graph="""(float[N,3,2,5] x, float[N,6,2,5] z) => (float[] y) {
            y = Einsum<equation="nqhd,nkhd->nhqk">(x, z) }"""
    ),
    "einsum.mixed": Case(
        graph="""(float[N,2,3,6] x, float[N,6,2,5] z) => (float[] y) {
            y = Einsum<equation="nhqk,nkhd->nqhd">(x, z) }"""
    ),
    "matmul_left.rows": Case(graph="""(float[N,4,5] x) => (float[] y) <float[6,4] w> { y = MatMul(w, x) }"""),
    "matmul_left.behind_a_transpose": Case(
        graph="""(float[N,2,5,4] x) => (float[] y) <float[6,4] w> {
            t = Transpose<perm=[0,1,3,2]>(x)
            y = MatMul(w, t) }"""
    ),
    "matmul_left.behind_another_transpose": Case(
        graph="""(float[4,5,N] x) => (float[] y) <float[6,5] w> {
            t = Transpose(x)
            y = MatMul(w, t) }"""
    ),
    "matmul_left.batch_of_matrices": Case(
        graph="""(float[N,3,4,5] x) => (float[] y) <float[3,6,4] w> { y = MatMul(w, x) }"""
    ),
    "matmul_left.more_axes_than_the_other": Case(
        graph="""(float[4,N] x) => (float[] y) <float[3,6,4] w> { y = MatMul(w, x) }"""
    ),
    "mean_pool.kept_axes": Case(
        graph="(float[N,3,5,6] x) => (float[] y) <int64[2] k = {2,3}> { y = ReduceMean(x, k) }"
    ),
    "mean_pool.axes_gone": Case(
        graph="(float[N,3,5,6] x) => (float[] y) { y = ReduceMean<axes=[-1,-2], keepdims=0>(x) }", opset=17
    ),
    "mean_pool.volume": Case(
        graph="(float[N,3,2,5,6] x) => (float[] y) <int64[3] k = {2,3,4}> { y = ReduceMean(x, k) }"
    ),
    "matmul_factor.layer_scale": Case(
        graph="(float[N,3,4] x) => (float[] y) <float[4,6] w, float[6] b, float[6] k> "
        "{ m = MatMul(x, w)\n a = Add(m, b)\n y = Mul(k, a) }"
    ),
    "matmul_factor.divided": Case(
        graph="(float[N,3,4] x) => (float[] y) <float[4,6] w, float[1,1] k> { m = MatMul(x, w)\n"
        " y = Div(m, k) }",
        constants={"k": [[4.0]]},
    ),
    "matmul_factor.bias_of_one_element": Case(
        graph="(float[N,3,4] x) => (float[] y) <float[4,6] w, float b, float[1,6] k> "
        "{ m = MatMul(x, w)\n a = Add(b, m)\n y = Mul(a, k) }",
        constants={"b": 0.7},
    ),
    "reciprocal.rms": Case(
        graph="(float[N,3,4] x) => (float[] y) <float e, int64[1] k = {-1}> { q = Mul(x, x)\n"
        " m = ReduceMean(q, k)\n f = Add(m, e)\n s = Sqrt(f)\n r = Reciprocal(s)\n y = Mul(x, r) }",
        constants={"e": 1e-5},
    ),
    "reciprocal.power": Case(
        graph="(float[N,3,4] x) => (float[] y) <float e, float h, int64[1] k = {-1}> { q = Mul(x, x)\n"
        " m = ReduceMean(q, k)\n f = Add(m, e)\n r = Pow(f, h)\n y = Mul(r, x) }",
        constants={"e": 1e-5, "h": -0.5},
    ),
}


# Small graphs whose Pad or Resize names its axes, and others that name none.


IMAGE = "(float[N,3,5,6] x) => (float[] y)"

AXES = {
    "named_axes.pad": Case(
        graph=f"""{IMAGE} <int64[4] p = {{1,0,2,3}}, int64[2] a = {{-1,2}}, float v> {{
            y = Pad<mode="constant">(x, p, v, a) }}""",
        constants={"v": 2.0},
    ),
    "named_axes.pad_computed": Case(
        graph=f"""{IMAGE} <int64[2] a = {{3,2}}> {{
            s = Shape<start=2>(x)
            p = Concat<axis=0>(s, s)
            y = Pad(x, p, , a) }}"""
    ),
    "named_axes.resize_by_scales": Case(
        graph=f'{IMAGE} <float[2] k> {{ y = Resize<mode="linear", antialias=1, axes=[2,3]>(x, , k) }}',
        constants={"k": [0.5, 2.0]},
    ),
    "named_axes.resize_to_sizes": Case(
        graph=f"{IMAGE} <int64[2] k = {{4,9}}> {{ y = Resize<axes=[-1,2]>(x, , , k) }}"
    ),
    "named_axes.resize_of_a_part": Case(
        graph=f"""{IMAGE} <float[4] r, int64[2] k = {{4,9}}> {{
            y = Resize<axes=[2,3], coordinate_transformation_mode="tf_crop_and_resize">(x, r, , k) }}""",
        constants={"r": [0.25, 0.0, 1.0, 0.75]},
    ),
}


# Branches of a constant condition.


YES = "t = Constant<value = bool {1}>()"
NO = "f = Constant<value = bool {0}>()"

BRANCHES = {
    "known_branch.names_that_clash": Case(
        graph=f"""{ROW} <float[4] w, float[4] u> {{ {YES} {NO}
            a = If(t) <
                then_branch = b1 () => (float[N,4] p) {{ h = Mul(x, w) p = Relu(h) }},
                else_branch = b2 () => (float[N,4] q) {{ h = Mul(x, u) q = Abs(h) }}>
            y = If(f) <
                then_branch = b3 () => (float[N,4] p) {{ h = Sub(a, w) p = Neg(h) }},
                else_branch = b4 () => (float[N,4] p) {{ h = Add(a, u) p = Tanh(h) }}> }}"""
    ),
    "known_branch.equal_outputs": Case(
        graph=f"""{ROW} {{ {YES}
            r = Relu(x)
            a, b = If(t) <
                then_branch = b1 () => (float[N,4] n, float[N,4] m) {{ n = Neg(r) m = Neg(r) }},
                else_branch = b2 () => (float[N,4] p, float[N,4] q) {{ p = Abs(r) q = Neg(r) }}>
            y = Mul(a, b) }}"""
    ),
    "known_branch.nested": Case(
        graph=f"""(float[N,4] x, bool c) => (float[N,4] y) {{ {YES} {NO}
            y = If(c) <
                then_branch = b1 () => (float[N,4] p) {{
                    p = If(t) <
                        then_branch = b2 () => (float[N,4] s) {{ h = Abs(x) s = Neg(h) }},
                        else_branch = b3 () => (float[N,4] v) {{ v = Exp(x) }}> }},
                else_branch = b4 () => (float[N,4] q) {{
                    q = If(f) <
                        then_branch = b5 () => (float[N,4] v) {{ v = Exp(x) }},
                        else_branch = b6 () => (float[N,4] s) {{ h = Relu(x) s = Neg(h) }}> }}> }}"""
    ),
}
