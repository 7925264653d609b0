"""Operators that only move values."""

from tests.unit.plan.cases.case import COST, Case, image, layer, rows

MOVE = {
    "max_pool": Case(image("a = MaxPool<kernel_shape=[2,2], strides=[2,2]>(c)"), "c a y", shared={"a": "c"}),
    "max_pool_of_the_input": Case(
        layer("float[N,3,8,8] x", "float[3,3,1,1] w", "a = MaxPool<kernel_shape=[2,2]>(x)", "y = Conv(a, w)"),
        "a y",
        shared={"a": "x"},
    ),
    "max_pool_3d": Case(
        layer(
            "float[N,3,4,4,4] x",
            "float[3,3,1,1,1] w",
            "a = MaxPool<kernel_shape=[2,2,2]>(x)",
            "y = Conv(a, w)",
        ),
        "a y",
        shared={"a": "x"},
    ),
    "max_pool_with_indices": Case(
        image("a, i = MaxPool<kernel_shape=[2,2]>(c)", output="float[] y, int64[] i"),
        "c y",
        {"a": "its second output 'i' is read too"},
    ),
    "relu_max_pool": Case(
        image("r = Relu(c)\n a = MaxPool<kernel_shape=[2,2]>(r)"), "c r a y", shared={"a": "r"}
    ),
    "reshape_transpose": Case(
        layer(
            "float[N,8] x",
            "float[8,8] u, int64[3] s = {-1,2,4}, float[2,4] w",
            "g = Gemm(x, u)",
            "r = Reshape(g, s)",
            "t = Transpose<perm=[0,2,1]>(r)",
            "y = MatMul(t, w)",
        ),
        "g r t y",
        shared={"r": "g", "t": "g"},
    ),
    "reshape_of_a_float": Case(
        layer(
            "float[N,16] x",
            "float[8,8] w, int64[3] s = {0,2,8}",
            "t = Tanh(x)",
            "r = Reshape(t, s)",
            "y = MatMul(r, w)",
        ),
        "r y",
        {"t": "no integer Tanh"},
        {"r": "t"},
    ),
    "squeeze_unsqueeze": Case(
        rows("s = Unsqueeze(g, k)\n a = Squeeze(s, k)", ", int64[1] k = {1}"),
        "g s a y",
        shared={"s": "g", "a": "g"},
    ),
    "slice": Case(
        rows("a = Slice(g, k, e, k)", ", int64[1] k = {1}, int64[1] e = {3}"), "g a y", shared={"a": "g"}
    ),
    "gather_one": Case(
        layer(
            "float[N,4,8] x",
            "float[8,8] u, float[8,4] w, int64 k = {0}",
            "g = MatMul(x, u)",
            "a = Gather<axis=1>(g, k)",
            "y = Gemm(a, w)",
        ),
        "g a y",
        shared={"a": "g"},
    ),
    "gather_some": Case(
        image("a = Gather<axis=2>(c, k)", ", int64[3] k = {0,1,2}"), "c a y", shared={"a": "c"}
    ),
    "expand": Case(
        layer(
            "float[N,1,8] x",
            "float[8,8] u, float[8,4] w, int64[3] k = {1,3,1}",
            "g = MatMul(x, u)",
            "a = Expand(g, k)",
            "y = MatMul(a, w)",
        ),
        "g a y",
        shared={"a": "g"},
    ),
    "tile": Case(image("a = Tile(c, k)", ", int64[4] k = {1,1,2,2}"), "c a y", shared={"a": "c"}),
    "depth_to_space": Case(
        image("s = Concat<axis=1>(c, c, c, c)\n a = DepthToSpace<blocksize=2>(s)"),
        "c s a y",
        shared={"a": "s"},
    ),
    "resize_nearest": Case(
        image('a = Resize<mode="nearest">(c, , k)', ", float[4] k = {1,1,2,2}"), "c a y", shared={"a": "c"}
    ),
    "resize_linear": Case(
        image('a = Resize<mode="linear">(c, , k)', ", float[4] k = {1,1,2,2}"),
        "c y",
        {"a": "mode is linear, the integer kernel needs nearest"},
    ),
    "split": Case(
        image("d, b = Split<axis=3, num_outputs=2>(c)\n a = Add(d, b)"), "c d a y", {}, {"d": "c", "b": "c"}
    ),
    "split_for_one_reader": Case(
        image("a, b = Split<axis=3, num_outputs=2>(c)\n t = Tanh(b)", output="float[] y, float[] t"),
        "c a y",
        {"t": "no integer Tanh"},
        {"a": "c", "b": "c"},
    ),
    "split_with_an_output_of_no_use": Case(
        image("a, b = Split<axis=3, num_outputs=2>(c)"), "c y", {"a": "its output 'b' is read by nobody"}
    ),
    "split_of_an_input": Case(
        layer(
            "float[N,8,8] x",
            "float[4,8] w, float[4,8] v",
            "a, b = Split<axis=2, num_outputs=2>(x)",
            "l = MatMul(a, w)",
            "r = MatMul(b, v)",
            "y = Tanh(l)",
        ),
        "a l r",
        {"y": "no integer Tanh"},
        {"a": "x", "b": "x"},
    ),
    "reduce_max": Case(
        image("a = ReduceMax<keepdims=1>(c, k)", ", int64[1] k = {3}"), "c a y", {}, {"a": "c"}
    ),
    "reduce_min": Case(
        image("a = ReduceMin<keepdims=1>(c, k)", ", int64[1] k = {3}"), "c a y", {}, {"a": "c"}
    ),
    "gather_elements": Case(
        layer(
            "float[2,4,8] x, int64[2,4,8] i",
            "float[8,8] u, float[8,8] v",
            "g = MatMul(x, u)",
            "a = GatherElements<axis=1>(g, i)",
            "y = MatMul(a, v)",
        ),
        "g a y",
        {},
        {"a": "g"},
    ),
    "pad": Case(image("a = Pad(c, k)", ", int64[8] k = {0,0,1,1,0,0,1,1}"), "c y", {"a": "no integer Pad"}),
    "relu_between_moves": Case(
        rows("s = Reshape(g, k)\n a = Relu(s)", ", int64[3] k = {0,0,8}"),
        "g y",
        {"s": COST, "a": "disappears into the quantized range"},
    ),
    "relu_read_beside_its_input": Case(
        image("r = Relu(c)\n a = Add(r, c)"), "c a y", {"r": "disappears into the quantized range"}
    ),
}
