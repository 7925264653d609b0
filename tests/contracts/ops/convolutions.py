"""Conv in one, two and three dimensions, and ConvTranspose."""

from tests.contracts.ops.case import CONV_TRANSPOSE, OpCase, graph

PLANE = "float[N,4,8,8] x"

CONVOLUTIONS = {
    "conv_1d": OpCase(
        graph=graph("float[N,4,16] x", "float[6,4,3] w, float[6] b", "y = Conv(x, w, b)"),
        integer="y",
        kernels={"QLinearConv": 1},
    ),
    "conv_1d_dilated_causal": OpCase(
        graph=graph("float[N,4,16] x", "float[6,4,3] w", "y = Conv<dilations=[2], pads=[4,0]>(x, w)"),
        integer="y",
        kernels={"QLinearConv": 1},
    ),
    "conv_2d": OpCase(
        graph=graph(PLANE, "float[6,4,3,3] w, float[6] b", "y = Conv(x, w, b)"),
        integer="y",
        kernels={"QLinearConv": 1},
    ),
    "conv_2d_relu": OpCase(
        graph=graph(PLANE, "float[6,4,3,3] w, float[6] b", "c = Conv(x, w, b)", "y = Relu(c)"),
        integer="c y",
        kernels={"QLinearConv": 1},
    ),
    "conv_2d_same_upper": OpCase(
        graph=graph(PLANE, "float[6,4,3,3] w", 'y = Conv<auto_pad="SAME_UPPER", strides=[2,2]>(x, w)'),
        integer="y",
        kernels={"QLinearConv": 1},
    ),
    "conv_2d_grouped": OpCase(
        graph=graph(PLANE, "float[6,2,3,3] w, float[6] b", "y = Conv<group=2>(x, w, b)"),
        integer="y",
        kernels={"QLinearConv": 1},
    ),
    "conv_2d_depthwise": OpCase(
        graph=graph(PLANE, "float[4,1,3,3] w, float[4] b", "y = Conv<group=4, pads=[1,1,1,1]>(x, w, b)"),
        integer="y",
        kernels={"QLinearConv": 1},
    ),
    "conv_2d_dilated": OpCase(
        graph=graph(PLANE, "float[6,4,3,3] w", "y = Conv<dilations=[2,2]>(x, w)"),
        integer="y",
        kernels={"QLinearConv": 1},
    ),
    "conv_2d_asymmetric_pads": OpCase(
        graph=graph(PLANE, "float[6,4,3,3] w", "y = Conv<pads=[0,1,2,1], strides=[2,1]>(x, w)"),
        integer="y",
        kernels={"QLinearConv": 1},
    ),
    "conv_2d_pointwise": OpCase(
        graph=graph(PLANE, "float[6,4,1,1] w", "y = Conv(x, w)"), integer="y", kernels={"QLinearConv": 1}
    ),
    "conv_3d": OpCase(
        graph=graph("float[N,2,4,6,6] x", "float[4,2,3,3,3] w, float[4] b", "y = Conv(x, w, b)"),
        integer="y",
        kernels={"QLinearConv": 1},
    ),
    "conv_3d_grouped": OpCase(
        graph=graph(
            "float[N,2,4,6,6] x", "float[4,1,3,3,3] w", "y = Conv<group=2, pads=[1,1,1,1,1,1]>(x, w)"
        ),
        integer="y",
        kernels={"QLinearConv": 1},
    ),
    "conv_batch_norm": OpCase(
        graph=graph(
            PLANE,
            "float[6,4,3,3] w, float[6] s, float[6] t, float[6] m, float[6] v = {1,2,3,4,5,6}",
            "c = Conv(x, w)",
            "y = BatchNormalization(c, s, t, m, v)",
        ),
        integer="c",
        kernels={"QLinearConv": 1},
    ),
    "conv_weight_computed": OpCase(
        graph=graph(
            PLANE,
            "int64[1] z = {0}, int64[4] s = {4,4,4,4}",
            "m = ReduceMean<keepdims=0>(x, z)",
            "w = Reshape(m, s)",
            "y = Conv(x, w)",
        ),
        refused="its weight 'w' is computed at run time",
    ),
    "conv_bias_computed": OpCase(
        graph=graph(
            PLANE,
            "float[4,4,3,3] w, int64[3] z = {0,2,3}",
            "b = ReduceMean<keepdims=0>(x, z)",
            "y = Conv(x, w, b)",
        ),
        refused="its bias 'b' is computed at run time",
    ),
    "conv_transpose": OpCase(
        graph=graph(PLANE, "float[4,6,3,3] w, float[6] b", "y = ConvTranspose<strides=[2,2]>(x, w, b)"),
        integer="",
        floats={"y": CONV_TRANSPOSE},
    ),
    "conv_transpose_grouped": OpCase(
        graph=graph(PLANE, "float[4,3,2,2] w", "y = ConvTranspose<group=2, strides=[2,2]>(x, w)"),
        integer="",
        floats={"y": CONV_TRANSPOSE},
    ),
    "conv_transpose_1d_output_padding": OpCase(
        graph=graph(
            "float[N,4,8] x",
            "float[4,6,3] w",
            "y = ConvTranspose<strides=[2], output_padding=[1], pads=[1,1]>(x, w)",
        ),
        integer="",
        floats={"y": CONV_TRANSPOSE},
    ),
    "conv_transpose_between_convs": OpCase(
        graph=graph(
            PLANE,
            "float[4,4,1,1] w, float[4,4,2,2] u, float[4,4,1,1] v",
            "c = Conv(x, w)",
            "t = ConvTranspose<strides=[2,2]>(c, u)",
            "y = Conv(t, v)",
        ),
        integer="c y",
        floats={"t": CONV_TRANSPOSE},
        kernels={"QLinearConv": 2},
    ),
}
