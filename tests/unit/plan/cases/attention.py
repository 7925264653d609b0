"""Attention, and its masks."""

from tests.unit.plan.cases.case import COST, MASK, MASKED, READS_MASK, Case, layer

ATTENTION = {
    "attention": Case(
        graph=layer(
            "float[N,4,8] x",
            "float[8,8] wq, float[8,8] wk, float[8,8] wv, float[8,8] wo, float[8] bo, float k = {0.35}",
            "q = MatMul(x, wq) m = MatMul(x, wk) v = MatMul(x, wv) t = Transpose<perm=[0,2,1]>(m)",
            "s = MatMul(q, t) d = Mul(s, k) p = Softmax(d) o = MatMul(p, v) h = MatMul(o, wo)",
            "a = Add(h, bo) y = Add(a, x)",
        ),
        integer="q m v t s o h",
        floats={"d": COST, "p": "integer Softmax turns", "a": "bias of h", "y": COST},
        shared={"t": "m"},
    ),
    "residual_after_norm": Case(
        graph=layer(
            "float[N,4,8] x",
            "float[8] s, float[8] t, float[8,8] w, float[8] b",
            "l = LayerNormalization(x, s, t) m = MatMul(l, w) a = Add(m, b) y = Add(a, l)",
        ),
        integer="m",
        floats={"l": "no integer LayerNormalization", "a": "bias of m", "y": COST},
    ),
    "softmax_between_integers": Case(
        graph=layer(
            "float[N,8,4] x",
            "float[8,8,1] w, float[8,8,1] v",
            "c = Conv(x, w) t = Transpose<perm=[0,2,1]>(c) s = Softmax(t)",
            "u = Transpose<perm=[0,2,1]>(s) y = Conv(u, v)",
        ),
        integer="c",
        floats={
            "t": COST,
            "s": "integer Softmax turns",
            "u": COST,
            "y": "reads Softmax 's', which must not be integer",
        },
    ),
    "softmax_of_what_others_quantize_later": Case(
        graph=layer(
            "float[N,8,8] x",
            "float[8,8] w, float[8,8] v, float[8,8] u",
            "g = MatMul(x, w) s = Softmax(g) p = MatMul(s, v) q = MatMul(g, u) y = Add(p, q)",
        ),
        integer="g q",
        floats={"s": "integer Softmax turns", "p": "reads Softmax 's', which must not be integer", "y": COST},
    ),
    "mask_constant": Case(
        graph=layer(
            "float[N,4,4] q, float[N,4,4] v",
            f"float[4,4] k, {MASK}",
            "s = MatMul(q, k) a = Add(s, mask) p = Softmax(a) y = MatMul(p, v)",
        ),
        integer="s y",
        floats={"a": MASKED, "p": "integer Softmax turns"},
    ),
    "mask_read_by_matmul": Case(
        graph=layer(
            "float[N,4,4] q, float[N,4,4] v",
            f"float[4,4] k, {MASK}",
            "s = MatMul(q, k) a = Add(s, mask) y = MatMul(a, v)",
        ),
        integer="s",
        floats={"a": MASKED, "y": READS_MASK},
    ),
    "mask_moved_before_it_is_read": Case(
        graph=layer(
            "float[N,4,4] q, float[N,4,4] v",
            f"float[4,4] k, {MASK}, int64[3] z = {{0,0,0}}",
            "s = MatMul(q, k) a = Add(mask, s) r = Reshape(a, z) t = Transpose<perm=[0,2,1]>(r)",
            "y = MatMul(t, v)",
        ),
        integer="s",
        floats={"a": MASKED, "r": COST, "t": COST, "y": READS_MASK},
    ),
    "mask_computed": Case(
        graph=layer(
            "float[N,4,4] q, float[N,4,4] v, int64[N,1,4] m",
            "float[4,4] k, float one = {1}, float big = {-10000}, int64[1] z = {1}",
            "s = MatMul(q, k) f = Cast<to=1>(m) i = Sub(one, f) b = Mul(i, big) u = Unsqueeze(b, z)",
            "g = Squeeze(u, z) a = Add(g, s) y = MatMul(a, v)",
        ),
        integer="s",
        floats={"f": "Cast", "i": "Sub", "b": COST, "u": COST, "g": COST, "a": MASKED, "y": READS_MASK},
    ),
    "mask_subtracted": Case(
        graph=layer(
            "float[N,4,4] q, float[N,4,4] v, float[N,1,4] m",
            "float[4,4] k, float one = {1}, float big = {10000}",
            "s = MatMul(q, k) i = Sub(one, m) b = Mul(i, big) a = Sub(s, b) y = MatMul(a, v)",
        ),
        integer="s",
        floats={"i": "Sub", "b": COST, "a": MASKED, "y": READS_MASK},
    ),
    "mask_by_where": Case(
        graph=layer(
            "float[N,4,4] q, float[N,4,4] v, bool[N,1,4] m",
            "float[4,4] k, float big = {-3.4e38}",
            "s = MatMul(q, k) a = Where(m, s, big) p = Softmax(a) y = MatMul(p, v)",
        ),
        integer="s y",
        floats={"a": MASKED, "p": "integer Softmax turns"},
    ),
    "mask_by_where_and_add": Case(
        graph=layer(
            "float[N,4,4] q, float[N,4,4] v, bool[N,1,4] m",
            "float[4,4] k, float big = {-3.4e38}, float zero = {0}",
            "s = MatMul(q, k) w = Where(m, zero, big) a = Add(s, w) p = Softmax(a) y = MatMul(p, v)",
        ),
        integer="s y",
        floats={"w": MASKED, "a": MASKED, "p": "integer Softmax turns"},
    ),
    "large_shift_is_no_mask": Case(
        graph=layer(
            "float[N,4,8] x",
            "float[8,8] u, float k = {20000}",
            "a = Add(x, k) g = Sub(a, k) y = MatMul(g, u)",
        ),
        integer="y",
        floats={"a": COST, "g": "no integer Sub"},
    ),
}
