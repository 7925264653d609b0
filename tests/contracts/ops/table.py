"""Operators, and what must become of each, by topic."""

from dataclasses import replace

import numpy as np

from tests.contracts.ops.case import read_operators

# Conv and ConvTranspose.
CONVOLUTIONS = read_operators("""
conv_1d_dilated_causal: float[N,4,16] x | float[6,4,3] w | y = Conv<dilations=[2], pads=[4,0]>(x, w)
    -> integer y; runs 1 QLinearConv
conv_2d_asymmetric_pads: float[N,4,8,8] x | float[6,4,3,3] w | y = Conv<pads=[0,1,2,1], strides=[2,1]>(x, w)
    -> integer y; runs 1 QLinearConv
conv_3d_grouped: float[N,2,4,6,6] x | float[4,1,3,3,3] w | y = Conv<group=2, pads=[1,1,1,1,1,1]>(x, w)
    -> integer y; runs 1 QLinearConv
conv_batch_norm: float[N,4,8,8] x | float[6,4,3,3] w, float[6] s, float[6] t, float[6] m, float[6] v =
    {1,2,3,4,5,6} | c = Conv(x, w) y = BatchNormalization(c, s, t, m, v)
    -> integer c; runs 1 QLinearConv
conv_transpose_1d_output_padding: float[N,4,8] x | float[4,6,3] w | y = ConvTranspose<strides=[2],
    output_padding=[1], pads=[1,1]>(x, w)
    -> integer; y: no integer ConvTranspose on CPUs: its weight is stored as int8 but computed in float
conv_transpose_between_convs: float[N,4,8,8] x | float[4,4,1,1] w, float[4,4,2,2] u, float[4,4,1,1] v |
    c = Conv(x, w) t = ConvTranspose<strides=[2,2]>(c, u) y = Conv(t, v)
    -> integer c y; t: no integer ConvTranspose on CPUs: its weight is stored as int8 but computed in float;
       runs 2 QLinearConv
""")
# Gemm, MatMul and Einsum.
MATRICES = read_operators("""
gemm_alpha_beta: float[N,8] x | float[8,6] w, float[6] b | y = Gemm<alpha=0.5, beta=2.0>(x, w, b)
    -> integer y; runs 1 QGemm
gemm_two_inputs: float[4,8] x | | t = Transpose(x) y = Gemm(x, t)
    -> refused: its weight 't' is computed at run time
gemm_weight_left: float[8,6] x | float[5,8] w | y = Gemm(w, x)
    -> refused: reads the constant 'w': quantizing it would lose accuracy and gain nothing
gemm_computed_bias: float[N,8] x, float[N,6] z | float[8,6] w | y = Gemm(x, w, z)
    -> refused: its bias 'z' is computed at run time
matmul_constant_left: float[N,8,5] x | float[6,8] w | y = MatMul(w, x)
    -> integer y/Transpose y/MatMul; y: no integer operator reads it: in integers it would lose accuracy and
       not be faster; runs 1 MatMulIntegerToFloat
matmul_of_itself: float[N,6,6] x | | y = MatMul(x, x)
    -> integer y; runs 1 MatMulIntegerToFloat
matmul_broadcast_batch: float[N,3,5,8] x, float[N,1,8,6] z | | y = MatMul(x, z)
    -> integer y; runs 1 MatMulIntegerToFloat
matmul_weight_transposed: float[N,5,8] x | float[6,8] w | t = Transpose<perm=[1,0]>(w) y = MatMul(x, t)
    -> integer y; runs 1 MatMulIntegerToFloat
einsum_with_weight: float[N,5,8] x | float[8,6] w, float[6,4] v | e = Einsum<equation="nsi,io->nso">(x, w)
    y = MatMul(e, v)
    -> integer e y; runs 1 MatMulIntegerToFloat, 1 QLinearMatMul
einsum_of_two: float[N,2,5,4] x, float[N,2,6,4] z | float[6,4] v |
    e = Einsum<equation="nhqd,nhkd->nhqk">(x, z) y = MatMul(e, v)
    -> integer e/Transpose e y; runs 1 MatMulIntegerToFloat, 1 QLinearMatMul; least_db 20
einsum_alone: float[N,5,8] x | float[8,6] w | y = Einsum<equation="nsi,io->nso">(x, w)
    -> integer y; runs 1 MatMulIntegerToFloat
""")
# Recurrent layers.
RECURRENT = read_operators("""
lstm: float[6,N,4] x | float[1,20,4] w, float[1,20,5] r, float[1,40] b, float[5,3] v, int64[1] one = {1} |
    o, h = LSTM<hidden_size=5>(x, w, r, b) s = Squeeze(o, one) y = MatMul(s, v)
    -> integer s y; o: its weights are too small for integers to make the file smaller; runs 1
       MatMulIntegerToFloat
lstm_bidirectional: float[6,N,4] x | float[2,80,4] w, float[2,80,20] r, float[20,3] v |
    o = LSTM<hidden_size=20, direction="bidirectional">(x, w, r) y = MatMul(o, v)
    -> integer y; o: its weights are stored as integers but computed in float: ONNX Runtime's integer LSTM
       is not faster with so few; runs 1 MatMulIntegerToFloat
lstm_large: float[6,N,4] x | float[2,384,4] w, float[2,384,96] r, float[96,3] v | o = LSTM<hidden_size=96,
    direction="bidirectional">(x, w, r) y = MatMul(o, v)
    -> integer o y; runs 1 DynamicQuantizeLSTM, 1 MatMulIntegerToFloat
lstm_alone: float[6,N,4] x | float[1,20,4] w, float[1,20,5] r | y = LSTM<hidden_size=5>(x, w, r)
    -> refused: its weights are too small for integers to make the file smaller
gru: float[6,N,4] x | float[1,60,4] w, float[1,60,20] r, float[1,120] b, float[20,3] v |
    o = GRU<hidden_size=20, linear_before_reset=1>(x, w, r, b) y = MatMul(o, v)
    -> integer y; o: its weights are stored as integers but computed in float: ONNX Runtime has no integer
       GRU; runs 1 MatMulIntegerToFloat
rnn: float[6,N,4] x | float[1,30,4] w, float[1,30,30] r, float[30,3] v | o = RNN<hidden_size=30>(x, w, r)
    y = MatMul(o, v)
    -> integer y; o: its weights are stored as integers but computed in float: ONNX Runtime has no integer
       RNN; runs 1 MatMulIntegerToFloat
""")
# Arithmetic of two tensors, and activation functions, between operators that are quantized.
ELEMENTWISE = read_operators("""
sub: float[N,4,8,8] x | float[4,4,3,3] w, float[4,4,3,3] v, float[4,4,1,1] u |
    c = Conv<pads=[1,1,1,1]>(x, w) d = Conv<pads=[1,1,1,1]>(x, v) a = Sub(c, d) y = Conv(a, u)
    -> integer c d y; a: no integer Sub: ONNX Runtime adds and multiplies in integers; runs 3 QLinearConv
mul_scalar: float[N,4,8,8] x | float[4,4,1,1] u, float k = {0.5} | t = Tanh(x) a = Mul(t, k) y = Conv(a, u)
    -> integer y; t: no integer Tanh: Sigmoid and LeakyRelu are; a: reads the constant 'k': quantizing it
       would lose accuracy and gain nothing; runs 1 QLinearConv
div: float[N,4,8,8] x | float[4,4,3,3] w, float[4,4,3,3] v, float[4,4,1,1] u |
    c = Conv<pads=[1,1,1,1]>(x, w) d = Conv<pads=[1,1,1,1]>(x, v) e = Exp(d) a = Div(c, e) y = Conv(a, u)
    -> integer c d y; e: target ort-cpu has no rule for Exp; a: no integer Div: ONNX Runtime adds and
       multiplies in integers; runs 3 QLinearConv; least_db 21
prelu: float[N,4,8,8] x | float[4,4,3,3] w, float[4,4,1,1] u, float[4,1,1] k | c = Conv(x, w)
    a = PRelu(c, k) y = Conv(a, u)
    -> integer c y; a: no integer PRelu: Sigmoid and LeakyRelu are; runs 2 QLinearConv
sigmoid: float[N,4,8,8] x | float[4,4,3,3] w, float[4,4,1,1] u | c = Conv(x, w) a = Sigmoid(c)
    y = Conv(a, u)
    -> integer c a y; runs 2 QLinearConv, 1 QLinearSigmoid
hard_sigmoid: float[N,4,8,8] x | float[4,4,3,3] w, float[4,4,1,1] u | c = Conv(x, w)
    a = HardSigmoid<alpha=0.16666667>(c) y = Conv(a, u)
    -> integer c a y; runs 2 QLinearConv
hard_sigmoid_of_a_pooling: float[N,4,8,8] x | float[4,4,3,3] w, float[4,4,1,1] u | c = Conv(x, w)
    p = MaxPool<kernel_shape=[2,2]>(c) a = HardSigmoid(p) y = Conv(a, u)
    -> integer c y; p: no integer operator reads it: in integers it would lose accuracy and not be faster;
       a: no integer HardSigmoid: Sigmoid and LeakyRelu are; runs 2 QLinearConv
hard_swish: float[N,4,8,8] x | float[4,4,3,3] w, float[4,4,1,1] u | c = Conv(x, w) a = HardSwish(c)
    y = Conv(a, u)
    -> integer c a y; runs 2 QLinearConv, 1 QLinearAdd, 1 QLinearMul
gelu: float[N,4,8,8] x | float[4,4,3,3] w, float[4,4,1,1] u | c = Conv(x, w) a = Gelu(c) y = Conv(a, u)
    -> integer c y; a: no integer Gelu: Sigmoid and LeakyRelu are; runs 2 QLinearConv
gelu_written_out: float[N,4,8,8] x | float[4,4,3,3] w, float[4,4,1,1] u, float r = {1.4142135}, float one =
    {1}, float half = {0.5} | c = Conv(x, w) d = Div(c, r) e = Erf(d) f = Add(e, one) g = Mul(c, f)
    a = Mul(g, half) y = Conv(a, u)
    -> integer c y; a: no integer Gelu: Sigmoid and LeakyRelu are; runs 2 QLinearConv
silu_opset_24: float[N,4,8,8] x | float[4,4,3,3] w, float[4,4,1,1] u | c = Conv(x, w) s = Sigmoid(c)
    a = Mul(c, s) y = Conv(a, u)
    -> integer c y; a: no integer Swish: Sigmoid and LeakyRelu are; runs 2 QLinearConv; opset 24
""")
# Operators that move, pick, join or pool values, between operators that are quantized.
MOVES = read_operators("""
pad_reflect: float[N,4,8,8] x | float[4,4,3,3] w, float[4,4,1,1] u, int64[8] p = {0,0,1,1,0,0,1,1} |
    c = Conv(x, w) a = Pad<mode="reflect">(c, p) y = Conv(a, u)
    -> integer c y; a: no integer Pad: ONNX Runtime computes it in float; runs 2 QLinearConv
pad_of_named_axes: float[N,4,8,8] x | float[4,4,3,3] w, float[4,4,1,1] u, int64[2] p = {1,2}, int64[1] k =
    {-1} | c = Conv(x, w) a = Pad(c, p, , k) y = Conv(a, u)
    -> integer c y; runs 2 QLinearConv
resize_of_named_axes: float[N,4,8,8] x | float[4,4,3,3] w, float[4,4,1,1] u, float[2] s = {2,2} |
    c = Conv(x, w) a = Resize<mode="linear", axes=[2,3]>(c, , s) y = Conv(a, u)
    -> integer c y; a: mode is linear, the integer kernel needs nearest; runs 2 QLinearConv
squeeze: float[N,1,8] x | float[8,8] w, float[8,6] u, int64[1] o = {1} | g = MatMul(x, w) a = Squeeze(g, o)
    y = MatMul(a, u)
    -> integer g a y; runs 1 MatMulIntegerToFloat, 1 QLinearMatMul
flatten: float[N,4,8,8] x | float[4,4,3,3] w, float[144,5] u | c = Conv(x, w) a = Flatten(c) y = Gemm(a, u)
    -> integer c Reshape y; runs 1 QGemm, 1 QLinearConv
average_pool_counts_pads: float[N,4,8,8] x | float[4,4,3,3] w, float[4,4,1,1] u | c = Conv(x, w)
    a = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1], count_include_pad=1>(c) y = Conv(a, u)
    -> integer c a y; runs 1 QLinearAveragePool, 2 QLinearConv
global_max_pool: float[N,4,8,8] x | float[4,4,3,3] w, float[4,4,1,1] u | c = Conv(x, w) a = GlobalMaxPool(c)
    y = Conv(a, u)
    -> integer c y; a: no integer GlobalMaxPool: ONNX Runtime computes it in float; runs 2 QLinearConv
reduce_mean_spatial: float[N,4,8,8] x | float[4,4,3,3] w, float[4,4,1,1] u, int64[2] k = {2,3} |
    c = Conv(x, w) a = ReduceMean(c, k) y = Conv(a, u)
    -> integer c a y; runs 2 QLinearConv, 1 QLinearGlobalAveragePool
reduce_mean_sequence: float[N,4,8] x | float[8,8] w, float[8,6] u, int64[1] k = {1} | g = MatMul(x, w)
    a = ReduceMean<keepdims=0>(g, k) y = MatMul(a, u)
    -> integer g y; a: no integer ReduceMean: ONNX Runtime computes it in float; runs 2 MatMulIntegerToFloat
""")
# Normalizations, softmax and attention.
NORMALIZATIONS = read_operators("""
softmax: float[N,4,8] x | float[8,8] w, float[8,6] u | g = MatMul(x, w) a = Softmax(g) y = MatMul(a, u)
    -> integer g y; a: integer Softmax turns probabilities above the calibrated range into 0; runs 2
       MatMulIntegerToFloat
log_softmax: float[N,4,8] x | float[8,8] w, float[8,6] u | g = MatMul(x, w) a = LogSoftmax(g)
    y = MatMul(a, u)
    -> integer g y; a: no integer LogSoftmax: ONNX Runtime computes it in float; runs 2 MatMulIntegerToFloat
layer_normalization: float[N,4,8] x | float[8,8] w, float[8,6] u, float[8] s, float[8] t | g = MatMul(x, w)
    a = LayerNormalization(g, s, t) y = MatMul(a, u)
    -> integer g y; a: no integer LayerNormalization: ONNX Runtime computes it in float; runs 2
       MatMulIntegerToFloat
layer_norm_written_out: float[N,4,8] x | float[8,8] w, float[8,6] u, float[8] s, float[8] t, float two =
    {2}, float e = {0.00001}, int64[1] k = {-1} | g = MatMul(x, w) m = ReduceMean(g, k) d = Sub(g, m)
    q = Pow(d, two) v = ReduceMean(q, k) f = Add(v, e) r = Sqrt(f) n = Div(d, r) h = Mul(n, s) a = Add(h, t)
    y = MatMul(a, u)
    -> integer g y; a: no integer LayerNormalization: ONNX Runtime computes it in float; runs 2
       MatMulIntegerToFloat
rms_normalization: float[N,4,8] x | float[8,8] w, float[8,6] u, float[8] s | g = MatMul(x, w)
    a = RMSNormalization(g, s) y = MatMul(a, u)
    -> integer g y; a: no integer RMSNormalization: ONNX Runtime computes it in float; runs 2
       MatMulIntegerToFloat; opset 23
rms_norm_written_out: float[N,4,8] x | float[8,8] w, float[8,6] u, float[8] s, float e = {0.00001}, int64[1]
    k = {-1} | g = MatMul(x, w) q = Mul(g, g) m = ReduceMean(q, k) f = Add(m, e) r = Sqrt(f) n = Div(g, r)
    a = Mul(n, s) y = MatMul(a, u)
    -> integer g y; q: no integer operator reads it: in integers it would lose accuracy and not be faster;
       m: no integer ReduceMean: ONNX Runtime computes it in float; f: no integer operator reads it: in
       integers it would lose accuracy and not be faster; r: target ort-cpu has no rule for Sqrt; n: no
       integer Div: ONNX Runtime adds and multiplies in integers; a: reads the constant 's': quantizing it
       would lose accuracy and gain nothing; runs 2 MatMulIntegerToFloat
rms_norm_without_scale: float[N,4,8] x | float[8,8] w, float[8,6] u, float e = {0.00001}, int64[1] k = {-1}
    | g = MatMul(x, w) t = Exp(g) q = Mul(t, t) m = ReduceMean(q, k) f = Add(m, e) r = Sqrt(f)
    i = Reciprocal(r) a = Mul(t, i) y = MatMul(a, u)
    -> integer g y; t: no rule for Exp; q: no integer operator reads it: in integers it would lose accuracy
       and not be faster; m: no integer ReduceMean: ONNX Runtime computes it in float; f: no integer
       operator reads it: in integers it would lose accuracy and not be faster; r: no rule for Sqrt; a: no
       integer Div: ONNX Runtime adds and multiplies in integers; runs 2 MatMulIntegerToFloat
instance_normalization: float[N,4,8,8] x | float[4,4,3,3] w, float[4,4,1,1] u, float[4] s, float[4] t |
    c = Conv(x, w) a = InstanceNormalization(c, s, t) y = Conv(a, u) | float[N,4,6,6] y
    -> integer c y; a: no integer InstanceNormalization: ONNX Runtime computes it in float; runs 2
       QLinearConv
group_normalization: float[N,4,8,8] x | float[4,4,3,3] w, float[4,4,1,1] u, float[4] s, float[4] t |
    c = Conv(x, w) a = GroupNormalization<num_groups=2>(c, s, t) y = Conv(a, u) | float[N,4,6,6] y
    -> integer c y; a: no integer GroupNormalization: ONNX Runtime computes it in float; runs 2 QLinearConv;
       opset 21
batch_normalization_alone: float[N,4,8,8] x | float[4,4,3,3] w, float[4,4,1,1] u, float[4] s, float[4] t,
    float[4] m, float[4] v = {1,2,3,4} | c = Conv(x, w) r = Tanh(c) a = BatchNormalization(r, s, t, m, v)
    y = Conv(a, u) | float[N,4,6,6] y
    -> integer c y; r: no integer Tanh: Sigmoid and LeakyRelu are; a: no integer BatchNormalization: ptq
       folds it into a Conv; runs 2 QLinearConv
attention: float[N,5,8] x | float[8,8] wq, float[8,8] wk, float[8,8] wv, float[8,8] wo | q = MatMul(x, wq)
    k = MatMul(x, wk) v = MatMul(x, wv) a = Attention<q_num_heads=2, kv_num_heads=2>(q, k, v)
    y = MatMul(a, wo)
    -> integer q k v y; a: no integer Attention: ONNX Runtime computes it in float; runs 4
       MatMulIntegerToFloat; opset 23
attention_with_mask: float[N,5,8] x | float[8,8] wq, float[8,8] wk, float[8,8] wv, float[8,8] wo, float[5,5]
    mask | q = MatMul(x, wq) k = MatMul(x, wk) v = MatMul(x, wv) a = Attention<q_num_heads=2,
    kv_num_heads=2>(q, k, v, mask) y = MatMul(a, wo)
    -> integer q k v y; a: no integer Attention: ONNX Runtime computes it in float; runs 4
       MatMulIntegerToFloat; opset 23
attention_alone: float[N,5,8] q, float[N,5,8] k, float[N,5,8] v | | y = Attention<q_num_heads=2,
    kv_num_heads=2>(q, k, v)
    -> refused: no integer Attention: ONNX Runtime computes it in float; opset 23
attention_written_out: float[N,5,8] x | float[8,8] wq, float[8,8] wk, float[8,8] wv, float[8,8] wo, float r
    = {0.35} | q = MatMul(x, wq) k = MatMul(x, wk) v = MatMul(x, wv) t = Transpose<perm=[0,2,1]>(k)
    s = MatMul(q, t) d = Mul(s, r) p = Softmax(d) o = MatMul(p, v) y = MatMul(o, wo)
    -> integer q k v t s o y; d: no integer operator reads it: in integers it would lose accuracy and not be
       faster; p: integer Softmax turns probabilities above the calibrated range into 0; runs 2
       MatMulIntegerToFloat, 4 QLinearMatMul; least_db 20
""")
OPERATORS = CONVOLUTIONS | MATRICES | RECURRENT | ELEMENTWISE | MOVES | NORMALIZATIONS
OPERATORS["attention_with_mask"] = replace(
    OPERATORS["attention_with_mask"], constants={"mask": np.triu(np.full((5, 5), -np.inf, np.float32), 1)}
)
