"""Operators that move, pick, join or pool values, between operators that are quantized."""

from tests.contracts.ops.case import OpCase, graph

PLANE = "float[N,4,8,8] x"
ROWS = "float[N,4,8] x"


def plane(body: str, constants: str = "", weight: str = "float[4,4,1,1] u") -> str:
    """Conv, then ``body`` that makes ``a`` of ``c``, then Conv."""
    return graph(PLANE, f"float[4,4,3,3] w, {weight}{constants}", "c = Conv(x, w)", body, "y = Conv(a, u)")


def rows(body: str, constants: str = "", weight: str = "float[8,6] u") -> str:
    """MatMul, then ``body`` that makes ``a`` of ``g``, then MatMul."""
    return graph(ROWS, f"float[8,8] w, {weight}{constants}", "g = MatMul(x, w)", body, "y = MatMul(a, u)")


MOVES = {
    "pad_reflect": OpCase(
        graph=plane('a = Pad<mode="reflect">(c, p)', ", int64[8] p = {0,0,1,1,0,0,1,1}"),
        integer="c y",
        floats={"a": "no integer Pad: ONNX Runtime computes it in float"},
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
    "squeeze": OpCase(
        graph=graph(
            "float[N,1,8] x",
            "float[8,8] w, float[8,6] u, int64[1] o = {1}",
            "g = MatMul(x, w) a = Squeeze(g, o) y = MatMul(a, u)",
        ),
        integer="g a y",
        kernels={"MatMulIntegerToFloat": 1, "QLinearMatMul": 1},
    ),
    "flatten": OpCase(
        graph=graph(
            PLANE, "float[4,4,3,3] w, float[144,5] u", "c = Conv(x, w)", "a = Flatten(c)", "y = Gemm(a, u)"
        ),
        integer="c Reshape y",
        kernels={"QGemm": 1, "QLinearConv": 1},
    ),
    "average_pool_counts_pads": OpCase(
        graph=plane("a = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1], count_include_pad=1>(c)"),
        integer="c a y",
        kernels={"QLinearAveragePool": 1, "QLinearConv": 2},
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
}
