"""Operators that only move values."""

from tests.unit.plan.cases.case import COST, Case, image, layer, rows

MOVE = {
    "max_pool": Case(
        graph=image("a = MaxPool<kernel_shape=[2,2], strides=[2,2]>(c)"), integer="c a y", shared={"a": "c"}
    ),
    "max_pool_of_the_input": Case(
        graph=layer(
            "float[N,3,8,8] x", "float[3,3,1,1] w", "a = MaxPool<kernel_shape=[2,2]>(x)", "y = Conv(a, w)"
        ),
        integer="a y",
        shared={"a": "x"},
    ),
    "max_pool_3d": Case(
        graph=layer(
            "float[N,3,4,4,4] x", "float[3,3,1,1,1] w", "a = MaxPool<kernel_shape=[2,2,2]>(x) y = Conv(a, w)"
        ),
        integer="a y",
        shared={"a": "x"},
    ),
    "max_pool_with_indices": Case(
        graph=image("a, i = MaxPool<kernel_shape=[2,2]>(c)", output="float[] y, int64[] i"),
        integer="c y",
        floats={"a": "its second output 'i' is used too"},
    ),
    "relu_max_pool": Case(
        graph=image("r = Relu(c)\n a = MaxPool<kernel_shape=[2,2]>(r)"), integer="c r a y", shared={"a": "r"}
    ),
    "reshape_transpose": Case(
        graph=layer(
            "float[N,8] x",
            "float[8,8] u, int64[3] s = {-1,2,4}, float[2,4] w",
            "g = Gemm(x, u) r = Reshape(g, s) t = Transpose<perm=[0,2,1]>(r) y = MatMul(t, w)",
        ),
        integer="g r t y",
        shared={"r": "g", "t": "g"},
    ),
    "reshape_of_a_float": Case(
        graph=layer(
            "float[N,16] x",
            "float[8,8] w, int64[3] s = {0,2,8}",
            "t = Tanh(x) r = Reshape(t, s) y = MatMul(r, w)",
        ),
        integer="r y",
        floats={"t": "no integer Tanh"},
        shared={"r": "t"},
    ),
    "squeeze_unsqueeze": Case(
        graph=rows("s = Unsqueeze(g, k)\n a = Squeeze(s, k)", ", int64[1] k = {1}"),
        integer="g s a y",
        shared={"s": "g", "a": "g"},
    ),
    "slice": Case(
        graph=rows("a = Slice(g, k, e, k)", ", int64[1] k = {1}, int64[1] e = {3}"),
        integer="g a y",
        shared={"a": "g"},
    ),
    "gather_one": Case(
        graph=layer(
            "float[N,4,8] x",
            "float[8,8] u, float[8,4] w, int64 k = {0}",
            "g = MatMul(x, u) a = Gather<axis=1>(g, k) y = Gemm(a, w)",
        ),
        integer="g a y",
        shared={"a": "g"},
    ),
    "gather_some": Case(
        graph=image("a = Gather<axis=2>(c, k)", ", int64[3] k = {0,1,2}"), integer="c a y", shared={"a": "c"}
    ),
    "expand": Case(
        graph=layer(
            "float[N,1,8] x",
            "float[8,8] u, float[8,4] w, int64[3] k = {1,3,1}",
            "g = MatMul(x, u) a = Expand(g, k) y = MatMul(a, w)",
        ),
        integer="g a y",
        shared={"a": "g"},
    ),
    "tile": Case(
        graph=image("a = Tile(c, k)", ", int64[4] k = {1,1,2,2}"), integer="c a y", shared={"a": "c"}
    ),
    "depth_to_space": Case(
        graph=image("s = Concat<axis=1>(c, c, c, c)\n a = DepthToSpace<blocksize=2>(s)"),
        integer="c s a y",
        shared={"a": "s"},
    ),
    "resize_nearest": Case(
        graph=image('a = Resize<mode="nearest">(c, , k)', ", float[4] k = {1,1,2,2}"),
        integer="c a y",
        shared={"a": "c"},
    ),
    "resize_linear": Case(
        graph=image('a = Resize<mode="linear">(c, , k)', ", float[4] k = {1,1,2,2}"),
        integer="c y",
        floats={"a": "mode is linear, the integer kernel needs nearest"},
    ),
    "split": Case(
        graph=image("d, b = Split<axis=3, num_outputs=2>(c)\n a = Add(d, b)"),
        integer="c d a y",
        floats={},
        shared={"d": "c", "b": "c"},
    ),
    "split_for_one_reader": Case(
        graph=image("a, b = Split<axis=3, num_outputs=2>(c)\n t = Tanh(b)", output="float[] y, float[] t"),
        integer="c a y",
        floats={"t": "no integer Tanh"},
        shared={"a": "c", "b": "c"},
    ),
    "split_with_an_output_of_no_use": Case(
        graph=image("a, b = Split<axis=3, num_outputs=2>(c)"),
        integer="c y",
        floats={"a": "its output 'b' is not used, so it cannot be quantized"},
    ),
    "split_of_an_input": Case(
        graph=layer(
            "float[N,8,8] x",
            "float[4,8] w, float[4,8] v",
            "a, b = Split<axis=2, num_outputs=2>(x) l = MatMul(a, w) r = MatMul(b, v) y = Tanh(l)",
        ),
        integer="a l r",
        floats={"y": "no integer Tanh"},
        shared={"a": "x", "b": "x"},
    ),
    "reduce_max": Case(
        graph=image("a = ReduceMax<keepdims=1>(c, k)", ", int64[1] k = {3}"),
        integer="c a y",
        floats={},
        shared={"a": "c"},
    ),
    "reduce_min": Case(
        graph=image("a = ReduceMin<keepdims=1>(c, k)", ", int64[1] k = {3}"),
        integer="c a y",
        floats={},
        shared={"a": "c"},
    ),
    "gather_elements": Case(
        graph=layer(
            "float[2,4,8] x, int64[2,4,8] i",
            "float[8,8] u, float[8,8] v",
            "g = MatMul(x, u) a = GatherElements<axis=1>(g, i) y = MatMul(a, v)",
        ),
        integer="g a y",
        floats={},
        shared={"a": "g"},
    ),
    "pad": Case(
        graph=image("a = Pad(c, k)", ", int64[8] k = {0,0,1,1,0,0,1,1}"),
        integer="c y",
        floats={"a": "no integer Pad"},
    ),
    "relu_between_moves": Case(
        graph=rows("s = Reshape(g, k)\n a = Relu(s)", ", int64[3] k = {0,0,8}"),
        integer="g y",
        floats={"s": COST, "a": "disappears into the quantized range"},
    ),
    "relu_read_beside_its_input": Case(
        graph=image("r = Relu(c)\n a = Add(r, c)"),
        integer="c a y",
        floats={"r": "disappears into the quantized range"},
    ),
}
