"""LSTM, GRU and RNN, each with a Gemm that is quantized all the same."""

from tests.contracts.ops.case import OpCase, graph

SEQUENCE = "float[6,N,4] x"

RECURRENT = {
    "lstm": OpCase(
        graph=graph(
            SEQUENCE,
            "float[1,20,4] w, float[1,20,5] r, float[1,40] b, float[5,3] v, int64[1] one = {1}",
            "o, h = LSTM<hidden_size=5>(x, w, r, b)",
            "s = Squeeze(o, one)",
            "y = MatMul(s, v)",
        ),
        integer="s y",
        floats={"o": "no integer LSTM: ONNX Runtime's integer LSTM finds its ranges at each run"},
        kernels={"MatMulIntegerToFloat": 1},
    ),
    "lstm_bidirectional": OpCase(
        graph=graph(
            SEQUENCE,
            "float[2,20,4] w, float[2,20,5] r, float[5,3] v",
            'o = LSTM<hidden_size=5, direction="bidirectional">(x, w, r)',
            "y = MatMul(o, v)",
        ),
        integer="y",
        floats={"o": "no integer LSTM: ONNX Runtime's integer LSTM finds its ranges at each run"},
        kernels={"MatMulIntegerToFloat": 1},
    ),
    "lstm_alone": OpCase(
        graph=graph(SEQUENCE, "float[1,20,4] w, float[1,20,5] r", "y = LSTM<hidden_size=5>(x, w, r)"),
        refused="no integer LSTM: ONNX Runtime's integer LSTM finds its ranges at each run",
    ),
    "gru": OpCase(
        graph=graph(
            SEQUENCE,
            "float[1,15,4] w, float[1,15,5] r, float[1,30] b, float[5,3] v",
            "o = GRU<hidden_size=5, linear_before_reset=1>(x, w, r, b)",
            "y = MatMul(o, v)",
        ),
        integer="y",
        floats={"o": "no integer GRU: ONNX Runtime computes it only in float"},
        kernels={"MatMulIntegerToFloat": 1},
    ),
    "rnn": OpCase(
        graph=graph(
            SEQUENCE,
            "float[1,5,4] w, float[1,5,5] r, float[5,3] v",
            "o = RNN<hidden_size=5>(x, w, r)",
            "y = MatMul(o, v)",
        ),
        integer="y",
        floats={"o": "no integer RNN: ONNX Runtime computes it only in float"},
        kernels={"MatMulIntegerToFloat": 1},
    ),
}
