"""Operators that move, pick, join or pool values, between operators that are quantized."""

from tests.contracts.ops.case import COST, DISAPPEARS, OpCase, graph

PLANE = "float[N,4,8,8] x"
ROWS = "float[N,4,8] x"


def plane(body: str, constants: str = "", weight: str = "float[4,4,1,1] u") -> str:
    """Conv, then ``body`` that makes ``a`` of ``c``, then Conv."""
    return graph(PLANE, f"float[4,4,3,3] w, {weight}{constants}", "c = Conv(x, w)", body, "y = Conv(a, u)")


def rows(body: str, constants: str = "", weight: str = "float[8,6] u") -> str:
    """MatMul, then ``body`` that makes ``a`` of ``g``, then MatMul."""
    return graph(ROWS, f"float[8,8] w, {weight}{constants}", "g = MatMul(x, w)", body, "y = MatMul(a, u)")


MOVES = {
    "concat": OpCase(
        graph=graph(
            PLANE,
            "float[4,4,3,3] w, float[4,4,3,3] v, float[4,8,1,1] u",
            "c = Conv(x, w)",
            "d = Conv(x, v)",
            "a = Concat<axis=1>(c, d)",
            "y = Conv(a, u)",
        ),
        integer="c d a y",
        kernels={"QLinearConcat": 1, "QLinearConv": 3},
    ),
    "split": OpCase(
        graph=graph(
            PLANE,
            "float[4,4,3,3] w, float[4,2,1,1] u, float[4,2,1,1] v",
            "c = Conv(x, w)",
            "a, b = Split<axis=1, num_outputs=2>(c)",
            "d = Conv(a, u)",
            "e = Conv(b, v)",
            "y = Add(d, e)",
        ),
        integer="c a d e",
        floats={"y": COST},
        kernels={"QLinearConv": 3},
    ),
    "slice": OpCase(
        graph=plane(
            "a = Slice(c, b, e, k)",
            ", int64[1] b = {1}, int64[1] e = {3}, int64[1] k = {1}",
            "float[4,2,1,1] u",
        ),
        integer="c a y",
        kernels={"QLinearConv": 2},
    ),
    "pad": OpCase(
        graph=plane("a = Pad(c, p)", ", int64[8] p = {0,0,1,1,0,0,1,1}"),
        integer="c y",
        kernels={"QLinearConv": 2},
    ),
    "pad_reflect": OpCase(
        graph=plane('a = Pad<mode="reflect">(c, p)', ", int64[8] p = {0,0,1,1,0,0,1,1}"),
        integer="c y",
        floats={"a": "no integer Pad: ONNX Runtime computes it in float"},
        kernels={"QLinearConv": 2},
    ),
    "resize_nearest": OpCase(
        graph=plane(
            'a = Resize<mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">'
            "(c, , s)",
            ", float[4] s = {1,1,2,2}",
        ),
        integer="c a y",
        kernels={"QLinearConv": 2},
    ),
    "resize_linear": OpCase(
        graph=plane('a = Resize<mode="linear">(c, , s)', ", float[4] s = {1,1,2,2}"),
        integer="c y",
        floats={"a": "mode is linear, the integer kernel needs nearest"},
        kernels={"QLinearConv": 2},
    ),
    "pad_of_named_axes": OpCase(
        graph=plane("a = Pad(c, p, , k)", ", int64[2] p = {1,2}, int64[1] k = {-1}"),
        integer="c y",
        kernels={"QLinearConv": 2},
    ),
    "resize_of_named_axes": OpCase(
        graph=plane('a = Resize<mode="linear", axes=[2,3]>(c, , s)', ", float[2] s = {2,2}"),
        integer="c y",
        floats={"a": "mode is linear, the integer kernel needs nearest"},
        kernels={"QLinearConv": 2},
    ),
    "gather_rows": OpCase(
        graph=rows("a = Gather<axis=1>(g, i)", ", int64[2] i = {2,0}"),
        integer="g a y",
        kernels={"MatMulIntegerToFloat": 1, "QLinearMatMul": 1},
    ),
    "embedding": OpCase(
        graph=graph(
            "int64[N,5] i",
            "float[10,8] t, float[8,6] u, float[6] b",
            "e = Gather(t, i)",
            "m = MatMul(e, u)",
            "y = Add(m, b)",
        ),
        integer="m",
        floats={
            "e": "looks up rows of the table 't': integers would make the file smaller",
            "y": "bias of m, added to its float result",
        },
        kernels={"MatMulIntegerToFloat": 1},
    ),
    "reshape": OpCase(
        graph=rows("a = Reshape(g, s)", ", int64[3] s = {0,8,4}", "float[4,6] u"),
        integer="g a y",
        kernels={"MatMulIntegerToFloat": 1, "QLinearMatMul": 1},
    ),
    "transpose": OpCase(
        graph=rows("a = Transpose<perm=[0,2,1]>(g)", "", "float[4,6] u"),
        integer="g a y",
        kernels={"MatMulIntegerToFloat": 1, "QLinearMatMul": 1},
    ),
    "squeeze_and_unsqueeze": OpCase(
        graph=rows("s = Unsqueeze(g, o)\n t = Squeeze(s, o)\n a = Relu(t)", ", int64[1] o = {1}"),
        integer="g y",
        floats={
            "s": COST,
            "t": COST,
            "a": DISAPPEARS,
        },
        kernels={"MatMulIntegerToFloat": 2},
    ),
    "squeeze": OpCase(
        graph=graph(
            "float[N,1,8] x",
            "float[8,8] w, float[8,6] u, int64[1] o = {1}",
            "g = MatMul(x, w)",
            "a = Squeeze(g, o)",
            "y = MatMul(a, u)",
        ),
        integer="g a y",
        kernels={"MatMulIntegerToFloat": 1, "QLinearMatMul": 1},
    ),
    "flatten": OpCase(
        graph=graph(
            PLANE,
            "float[4,4,3,3] w, float[144,5] u",
            "c = Conv(x, w)",
            "a = Flatten(c)",
            "y = Gemm(a, u)",
        ),
        integer="c Reshape y",
        kernels={"QGemm": 1, "QLinearConv": 1},
    ),
    "expand": OpCase(
        graph=rows("a = Expand(g, s)", ", int64[4] s = {2,1,1,1}"),
        integer="g a y",
        kernels={"MatMulIntegerToFloat": 1, "QLinearMatMul": 1},
    ),
    "max_pool": OpCase(
        graph=plane("a = MaxPool<kernel_shape=[2,2], strides=[2,2]>(c)"),
        integer="c a y",
        kernels={"QLinearConv": 2},
    ),
    "average_pool": OpCase(
        graph=plane("a = AveragePool<kernel_shape=[2,2]>(c)"),
        integer="c a y",
        kernels={"QLinearAveragePool": 1, "QLinearConv": 2},
    ),
    "average_pool_counts_pads": OpCase(
        graph=plane("a = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1], count_include_pad=1>(c)"),
        integer="c a y",
        kernels={"QLinearAveragePool": 1, "QLinearConv": 2},
    ),
    "global_average_pool": OpCase(
        graph=plane("a = GlobalAveragePool(c)"),
        integer="c a y",
        kernels={"QLinearConv": 2, "QLinearGlobalAveragePool": 1},
    ),
    "global_max_pool": OpCase(
        graph=plane("a = GlobalMaxPool(c)"),
        integer="c y",
        floats={"a": "no integer GlobalMaxPool: ONNX Runtime computes it in float"},
        kernels={"QLinearConv": 2},
    ),
    "reduce_mean_spatial": OpCase(
        graph=plane("a = ReduceMean(c, k)", ", int64[2] k = {2,3}"),
        integer="c a y",
        kernels={"QLinearConv": 2, "QLinearGlobalAveragePool": 1},
    ),
    "reduce_mean_sequence": OpCase(
        graph=rows("a = ReduceMean<keepdims=0>(g, k)", ", int64[1] k = {1}"),
        integer="g y",
        floats={"a": "no integer ReduceMean: ONNX Runtime computes it in float"},
        kernels={"MatMulIntegerToFloat": 2},
    ),
    "depth_to_space": OpCase(
        graph=plane("a = DepthToSpace<blocksize=2>(c)", "", "float[4,1,1,1] u"),
        integer="c a y",
        kernels={"QLinearConv": 2},
    ),
}
