"""Operators that are integer when all their sides are."""

from tests.unit.plan.cases.case import COST, Case, image, layer, rows

JOIN = {
    "add_before_conv": Case(graph=image("a = Add(c, x)"), integer="c a y"),
    "add_relu_before_conv": Case(graph=image("s = Add(c, x)\n a = Relu(s)"), integer="c s a y"),
    "add_before_norm_only": Case(
        graph=layer(
            "float[N,5,8] x",
            "float[8,8] w, float[8] s, float[8] t",
            "m = MatMul(x, w) r = Add(m, x) y = LayerNormalization(r, s, t)",
        ),
        integer="m",
        floats={"r": COST, "y": "no integer LayerNormalization"},
    ),
    "add_of_one_value": Case(graph=rows("a = Add(g, g)"), integer="g a y"),
    "add_broadcast": Case(
        graph=layer("float[N,5,8] x, float[N,1,8] z", "float[8,8] w", "a = Add(x, z)", "y = MatMul(a, w)"),
        integer="a y",
    ),
    "add_constant": Case(
        graph=rows("a = Add(g, k)", ", float[4,8] k"), integer="g y", floats={"a": "reads the constant 'k'"}
    ),
    "mul": Case(graph=image("a = Mul(c, x)"), integer="c a y"),
    "mul_broadcast": Case(
        graph=layer("float[N,5,8] x, float[N,1,8] z", "float[8,8] w", "a = Mul(x, z)", "y = MatMul(a, w)"),
        integer="a y",
    ),
    "mul_relu": Case(graph=image("m = Mul(c, x)\n a = Relu(m)"), integer="c m a y"),
    "squeeze_and_excite": Case(
        graph=image(
            "p = GlobalAveragePool(c)\n q = Conv(p, k)\n s = Sigmoid(q)\n a = Mul(c, s)", ", float[3,3,1,1] k"
        ),
        integer="c p q s a y",
    ),
    "silu": Case(graph=image("s = Sigmoid(c)\n a = Mul(c, s)"), integer="c s a y"),
    "leaky_relu": Case(graph=image("a = LeakyRelu<alpha=0.1>(c)"), integer="c a y"),
    "where": Case(
        graph=layer(
            "float[N,4,8] x, bool[N,4,8] m",
            "float[8,8] u, float[8,8] v",
            "g = MatMul(x, u) a = Where(m, g, x) y = MatMul(a, v)",
        ),
        integer="g a y",
    ),
    "concat": Case(graph=image("s = Concat<axis=2>(c, x, c)\n a = Relu(s)"), integer="c s a y"),
    "concat_for_the_output": Case(
        graph=layer("float[N,3,8,8] x", "float[3,3,1,1] w", "c = Conv(x, w)", "y = Concat<axis=1>(c, x)"),
        integer="c",
        floats={"y": COST},
    ),
    "concat_constant": Case(
        graph=layer(
            "float[4,3,8] x", "float[4,1,8] k, float[8,6] w", "a = Concat<axis=1>(k, x)", "y = MatMul(a, w)"
        ),
        integer="y",
        floats={"a": "reads the constant 'k'"},
    ),
    "average_pool": Case(
        graph=image("a = AveragePool<kernel_shape=[2,2], strides=[2,2], pads=[1,1,1,1]>(c)"), integer="c a y"
    ),
    "average_pool_ceil": Case(
        graph=image("a = AveragePool<kernel_shape=[3,3], strides=[2,2], ceil_mode=1>(c)"), integer="c a y"
    ),
    "average_pool_dilated": Case(
        graph=image("a = AveragePool<kernel_shape=[3,3], dilations=[2,2]>(c)"),
        integer="c",
        floats={
            "a": "dilations is [2, 2], the integer kernel needs 1",
            "y": "reads AveragePool 'a': dilations is [2, 2]",
        },
    ),
    "global_average_pool": Case(
        graph=layer(
            "float[N,3,8,8] x",
            "float[3,3,1,1] w, float[3,4] v",
            "c = Conv(x, w) r = Relu(c) g = GlobalAveragePool(r) f = Flatten(g) y = Gemm(f, v)",
        ),
        integer="c r g f y",
        shared={"f": "g"},
    ),
    "global_average_pool_1d": Case(
        graph=layer(
            "float[N,3,16] x",
            "float[3,3,3] w, float[3,3,1] v",
            "c = Conv(x, w) a = GlobalAveragePool(c) y = Conv(a, v)",
        ),
        integer="c a y",
    ),
    "residual_block": Case(
        graph=image("r = Relu(c)\n d = Conv(r, w)\n s = Add(r, d)\n a = Relu(s)"), integer="c r d s a y"
    ),
}
