"""Conv in one, two and three dimensions, and ConvTranspose."""

from tests.contracts.ops.case import CONV_TRANSPOSE, OpCase, graph

PLANE = "float[N,4,8,8] x"

CONVOLUTIONS = {
    "conv_1d_dilated_causal": OpCase(
        graph=graph("float[N,4,16] x", "float[6,4,3] w", "y = Conv<dilations=[2], pads=[4,0]>(x, w)"),
        integer="y",
        kernels={"QLinearConv": 1},
    ),
    "conv_2d_asymmetric_pads": OpCase(
        graph=graph(PLANE, "float[6,4,3,3] w", "y = Conv<pads=[0,1,2,1], strides=[2,1]>(x, w)"),
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
            "c = Conv(x, w) y = BatchNormalization(c, s, t, m, v)",
        ),
        integer="c",
        kernels={"QLinearConv": 1},
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
            "c = Conv(x, w) t = ConvTranspose<strides=[2,2]>(c, u) y = Conv(t, v)",
        ),
        integer="c y",
        floats={"t": CONV_TRANSPOSE},
        kernels={"QLinearConv": 2},
    ),
}
