"""LSTM, GRU and RNN, each with a Gemm that is quantized all the same."""

from tests.contracts.ops.case import OpCase, graph

SEQUENCE = "float[6,N,4] x"
SMALL = "its weights are too small for integers to make the file smaller"
STORED = "its weights are stored as integers but computed in float: ONNX Runtime"

RECURRENT = {
    "lstm": OpCase(
        graph=graph(
            SEQUENCE,
            "float[1,20,4] w, float[1,20,5] r, float[1,40] b, float[5,3] v, int64[1] one = {1}",
            "o, h = LSTM<hidden_size=5>(x, w, r, b) s = Squeeze(o, one) y = MatMul(s, v)",
        ),
        integer="s y",
        floats={"o": SMALL},
        kernels={"MatMulIntegerToFloat": 1},
    ),
    "lstm_bidirectional": OpCase(
        graph=graph(
            SEQUENCE,
            "float[2,80,4] w, float[2,80,20] r, float[20,3] v",
            'o = LSTM<hidden_size=20, direction="bidirectional">(x, w, r) y = MatMul(o, v)',
        ),
        integer="y",
        floats={"o": f"{STORED}'s integer LSTM is not faster with so few"},
        kernels={"MatMulIntegerToFloat": 1},
    ),
    "lstm_large": OpCase(
        graph=graph(
            SEQUENCE,
            "float[2,384,4] w, float[2,384,96] r, float[96,3] v",
            'o = LSTM<hidden_size=96, direction="bidirectional">(x, w, r) y = MatMul(o, v)',
        ),
        integer="o y",
        kernels={"DynamicQuantizeLSTM": 1, "MatMulIntegerToFloat": 1},
    ),
    "lstm_alone": OpCase(
        graph=graph(SEQUENCE, "float[1,20,4] w, float[1,20,5] r", "y = LSTM<hidden_size=5>(x, w, r)"),
        refused=SMALL,
    ),
    "gru": OpCase(
        graph=graph(
            SEQUENCE,
            "float[1,60,4] w, float[1,60,20] r, float[1,120] b, float[20,3] v",
            "o = GRU<hidden_size=20, linear_before_reset=1>(x, w, r, b) y = MatMul(o, v)",
        ),
        integer="y",
        floats={"o": f"{STORED} has no integer GRU"},
        kernels={"MatMulIntegerToFloat": 1},
    ),
    "rnn": OpCase(
        graph=graph(
            SEQUENCE,
            "float[1,30,4] w, float[1,30,30] r, float[30,3] v",
            "o = RNN<hidden_size=30>(x, w, r) y = MatMul(o, v)",
        ),
        integer="y",
        floats={"o": f"{STORED} has no integer RNN"},
        kernels={"MatMulIntegerToFloat": 1},
    ),
}
