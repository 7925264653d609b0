"""Convolutions, and what disappears into them."""

from tests.unit.plan.cases.case import Case, layer

CONV = {
    "conv": Case(
        graph=layer("float[N,3,8,8] x", "float[4,3,3,3] w, float[4] b", "y = Conv(x, w, b)"), integer="y"
    ),
    "conv_without_bias": Case(
        graph=layer("float[N,3,8,8] x", "float[4,3,3,3] w", "y = Conv(x, w)"), integer="y"
    ),
    "conv_with_empty_bias": Case(
        graph=layer("float[N,3,8,8] x", "float[4,3,3,3] w", "y = Conv(x, w, )"), integer="y"
    ),
    "conv_1d": Case(
        graph=layer("float[N,3,16] x", "float[4,3,3] w, float[4] b", "y = Conv(x, w, b)"), integer="y"
    ),
    "conv_3d": Case(
        graph=layer("float[N,3,6,6,6] x", "float[4,3,3,3,3] w, float[4] b", "y = Conv(x, w, b)"), integer="y"
    ),
    "conv_grouped": Case(
        graph=layer(
            "float[N,4,9,9] x", "float[6,2,3,3] w", "y = Conv<group=2, dilations=[2,2], pads=[1,1,1,1]>(x, w)"
        ),
        integer="y",
    ),
    "conv_same_upper": Case(
        graph=layer(
            "float[N,3,8,8] x", "float[4,3,3,3] w", 'y = Conv<auto_pad="SAME_UPPER", strides=[2,2]>(x, w)'
        ),
        integer="y",
    ),
    "depthwise": Case(
        graph=layer("float[N,4,8,8] x", "float[4,1,3,3] w, float[4] b", "y = Conv<group=4>(x, w, b)"),
        integer="y",
    ),
    "conv_relu": Case(
        graph=layer("float[N,3,8,8] x", "float[4,3,3,3] w, float[4] b", "c = Conv(x, w, b)", "y = Relu(c)"),
        integer="c y",
    ),
    "conv_clip": Case(
        graph=layer(
            "float[N,3,8,8] x",
            "float[4,3,3,3] w, float low = {0}, float high = {6}",
            "c = Conv(x, w) y = Clip(c, low, high)",
        ),
        integer="c y",
    ),
    "conv_clip_around_zero": Case(
        graph=layer(
            "float[N,3,8,8] x",
            "float[4,3,3,3] w, float low = {-0.7}, float high = {0.4}",
            "c = Conv(x, w) y = Clip(c, low, high)",
        ),
        integer="c y",
    ),
    "conv_clip_without_bounds": Case(
        graph=layer("float[N,3,8,8] x", "float[4,3,3,3] w", "c = Conv(x, w)", "y = Clip(c)"), integer="c y"
    ),
    "conv_clip_above": Case(
        graph=layer(
            "float[N,3,8,8] x", "float[4,3,3,3] w, float high = {1}", "c = Conv(x, w)", "y = Clip(c, , high)"
        ),
        integer="c y",
    ),
    "conv_clip_to_positive": Case(
        graph=layer(
            "float[N,3,8,8] x",
            "float[4,3,3,3] w, float low = {0.1}, float high = {0.5}",
            "c = Conv(x, w) y = Clip(c, low, high)",
        ),
        integer="c",
        floats={"y": "its bound 'low' excludes 0"},
    ),
    "conv_clip_to_negative": Case(
        graph=layer(
            "float[N,3,8,8] x", "float[4,3,3,3] w, float high = {-0.1}", "c = Conv(x, w) y = Clip(c, , high)"
        ),
        integer="c",
        floats={"y": "its bound 'high' excludes 0"},
    ),
    "conv_clip_computed_bound": Case(
        graph=layer("float[N,3,8,8] x, float low", "float[4,3,3,3] w", "c = Conv(x, w)", "y = Clip(c, low)"),
        integer="c",
        floats={"y": "its bound 'low' is computed at run time"},
    ),
    "conv_hardswish": Case(
        graph=layer("float[N,3,8,8] x", "float[4,3,3,3] w", "c = Conv(x, w)", "y = HardSwish(c)"),
        integer="c",
        floats={"y": "no integer operator reads it"},
    ),
    "conv_transpose": Case(
        graph=layer("float[N,3,8,8] x", "float[3,4,3,3] w, float[4] b", "y = ConvTranspose(x, w, b)"),
        integer="",
        floats={"y": "its weight is stored as int8 but computed in float"},
    ),
    "conv_transpose_grouped": Case(
        graph=layer("float[N,4,8,8] x", "float[4,2,3,3] w", "y = ConvTranspose<group=2>(x, w)"),
        integer="",
        floats={"y": "its weight is stored as int8 but computed in float"},
    ),
    "two_convs_of_one_input": Case(
        graph="(float[N,3,8,8] x) => (float[] y, float[] z) <float[3,3,1,1] w, float[4,3,1,1] v> "
        "{ y = Conv(x, w)\n z = Conv(x, v) }",
        integer="y z",
    ),
    "conv_weight_at_run_time": Case(
        graph="(float[N,3,8,8] x, float[4,3,3,3] k) => (float[] y, float[] z) <float[4,3,3,3] w> "
        "{ y = Conv(x, k)\n z = Conv(x, w) }",
        integer="z",
        floats={"y": "its weight 'k' is computed at run time"},
    ),
    "conv_bias_at_run_time": Case(
        graph="(float[N,3,8,8] x, float[4] k) => (float[] y, float[] z) <float[4,3,3,3] w> "
        "{ y = Conv(x, w, k)\n z = Conv(x, w) }",
        integer="z",
        floats={"y": "its bias 'k' is computed at run time"},
    ),
}
