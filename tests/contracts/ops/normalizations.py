"""Softmax, normalizations and Attention."""

import numpy as np

from tests.contracts.ops.case import COST, SOFTMAX, OpCase, graph

ROWS = "float[N,4,8] x"


def rows(body: str, constants: str = "") -> str:
    """MatMul, then ``body`` that makes ``a`` of ``g``, then MatMul."""
    return graph(ROWS, f"float[8,8] w, float[8,6] u{constants}", "g = MatMul(x, w)", body, "y = MatMul(a, u)")


def plane(body: str, constants: str = "") -> str:
    """Conv, then ``body`` that makes ``a`` of ``c``, then Conv."""
    return graph(
        "float[N,4,8,8] x",
        f"float[4,4,3,3] w, float[4,4,1,1] u{constants}",
        "c = Conv(x, w)",
        body,
        "y = Conv(a, u)",
        outputs="float[N,4,6,6] y",
    )


ATTENTION_INPUTS = "float[N,5,8] x"
PROJECTIONS = "float[8,8] wq, float[8,8] wk, float[8,8] wv, float[8,8] wo"
PROJECTED = ("q = MatMul(x, wq)", "k = MatMul(x, wk)", "v = MatMul(x, wv)")
CAUSAL = np.triu(np.full((5, 5), -np.inf, np.float32), 1)

NORMALIZATIONS = {
    "softmax": OpCase(
        graph=rows("a = Softmax(g)"),
        integer="g y",
        floats={"a": SOFTMAX},
        kernels={"MatMulIntegerToFloat": 2},
    ),
    "log_softmax": OpCase(
        graph=rows("a = LogSoftmax(g)"),
        integer="g y",
        floats={"a": "no integer LogSoftmax: ONNX Runtime computes it in float"},
        kernels={"MatMulIntegerToFloat": 2},
    ),
    "layer_normalization": OpCase(
        graph=rows("a = LayerNormalization(g, s, t)", ", float[8] s, float[8] t"),
        integer="g y",
        floats={"a": "no integer LayerNormalization: ONNX Runtime computes it in float"},
        kernels={"MatMulIntegerToFloat": 2},
    ),
    "layer_norm_written_out": OpCase(
        graph=rows(
            "m = ReduceMean(g, k)\n d = Sub(g, m)\n q = Pow(d, two)\n v = ReduceMean(q, k)\n f = Add(v, e)\n"
            " r = Sqrt(f)\n n = Div(d, r)\n h = Mul(n, s)\n a = Add(h, t)",
            ", float[8] s, float[8] t, float two = {2}, float e = {0.00001}, int64[1] k = {-1}",
        ),
        integer="g y",
        floats={"a": "no integer LayerNormalization: ONNX Runtime computes it in float"},
        kernels={"MatMulIntegerToFloat": 2},
    ),
    "rms_normalization": OpCase(
        graph=rows("a = RMSNormalization(g, s)", ", float[8] s"),
        opset=23,
        integer="g y",
        floats={"a": "no integer RMSNormalization: ONNX Runtime computes it in float"},
        kernels={"MatMulIntegerToFloat": 2},
    ),
    "rms_norm_written_out": OpCase(
        graph=rows(
            "q = Mul(g, g)\n m = ReduceMean(q, k)\n f = Add(m, e)\n r = Sqrt(f)\n n = Div(g, r)\n"
            " a = Mul(n, s)",
            ", float[8] s, float e = {0.00001}, int64[1] k = {-1}",
        ),
        integer="g y",
        floats={
            "q": COST,
            "m": "no integer ReduceMean: ONNX Runtime computes it in float",
            "f": COST,
            "r": "target ort-cpu has no rule for Sqrt",
            "n": "no integer Div: ONNX Runtime adds and multiplies in integers",
            "a": "reads the constant 's': quantizing it would lose accuracy and gain nothing",
        },
        kernels={"MatMulIntegerToFloat": 2},
    ),
    "rms_norm_without_scale": OpCase(
        graph=rows(
            "t = Exp(g)\n q = Mul(t, t)\n m = ReduceMean(q, k)\n f = Add(m, e)\n r = Sqrt(f)\n"
            " i = Reciprocal(r)\n a = Mul(t, i)",
            ", float e = {0.00001}, int64[1] k = {-1}",
        ),
        integer="g y",
        floats={
            "t": "no rule for Exp",
            "q": COST,
            "m": "no integer ReduceMean: ONNX Runtime computes it in float",
            "f": COST,
            "r": "no rule for Sqrt",
            "a": "no integer Div: ONNX Runtime adds and multiplies in integers",
        },
        kernels={"MatMulIntegerToFloat": 2},
    ),
    "instance_normalization": OpCase(
        graph=plane("a = InstanceNormalization(c, s, t)", ", float[4] s, float[4] t"),
        integer="c y",
        floats={"a": "no integer InstanceNormalization: ONNX Runtime computes it in float"},
        kernels={"QLinearConv": 2},
    ),
    "group_normalization": OpCase(
        graph=plane("a = GroupNormalization<num_groups=2>(c, s, t)", ", float[4] s, float[4] t"),
        opset=21,
        integer="c y",
        floats={"a": "no integer GroupNormalization: ONNX Runtime computes it in float"},
        kernels={"QLinearConv": 2},
    ),
    "batch_normalization_alone": OpCase(
        graph=plane(
            "r = Tanh(c)\n a = BatchNormalization(r, s, t, m, v)",
            ", float[4] s, float[4] t, float[4] m, float[4] v = {1,2,3,4}",
        ),
        integer="c y",
        floats={
            "r": "no integer Tanh: Sigmoid and LeakyRelu are",
            "a": "no integer BatchNormalization: ptq folds it into a Conv",
        },
        kernels={"QLinearConv": 2},
    ),
    "attention": OpCase(
        graph=graph(
            ATTENTION_INPUTS,
            PROJECTIONS,
            *PROJECTED,
            "a = Attention<q_num_heads=2, kv_num_heads=2>(q, k, v)",
            "y = MatMul(a, wo)",
        ),
        opset=23,
        integer="q k v y",
        floats={"a": "no integer Attention: ONNX Runtime computes it in float"},
        kernels={"MatMulIntegerToFloat": 4},
    ),
    "attention_with_mask": OpCase(
        graph=graph(
            ATTENTION_INPUTS,
            f"{PROJECTIONS}, float[5,5] mask",
            *PROJECTED,
            "a = Attention<q_num_heads=2, kv_num_heads=2>(q, k, v, mask)",
            "y = MatMul(a, wo)",
        ),
        opset=23,
        constants={"mask": CAUSAL},
        integer="q k v y",
        floats={"a": "no integer Attention: ONNX Runtime computes it in float"},
        kernels={"MatMulIntegerToFloat": 4},
    ),
    "attention_alone": OpCase(
        graph=graph(
            "float[N,5,8] q, float[N,5,8] k, float[N,5,8] v",
            "",
            "y = Attention<q_num_heads=2, kv_num_heads=2>(q, k, v)",
        ),
        opset=23,
        refused="no integer Attention: ONNX Runtime computes it in float",
    ),
    "attention_written_out": OpCase(
        graph=graph(
            ATTENTION_INPUTS,
            f"{PROJECTIONS}, float r = {{0.35}}",
            *PROJECTED,
            "t = Transpose<perm=[0,2,1]>(k)",
            "s = MatMul(q, t)",
            "d = Mul(s, r)",
            "p = Softmax(d)",
            "o = MatMul(p, v)",
            "y = MatMul(o, wo)",
        ),
        integer="q k v t s o y",
        floats={"d": COST, "p": SOFTMAX},
        kernels={"MatMulIntegerToFloat": 2, "QLinearMatMul": 4},
        least_db=20,
    ),
}
