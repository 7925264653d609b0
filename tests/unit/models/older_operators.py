"""Operators of opset 7 to 10 that are others in opset 13: the opsets that have them so, and a graph."""

TABLE = """\
upsample_nearest_attr 7,8: (float[N,2,4,4] x) => (float[N,2,8,8] y) { y = Upsample<mode="nearest",
    scales=[1.0,1.0,2.0,2.0]>(x) }
upsample_linear_attr 7,8: (float[N,2,4,4] x) => (float[N,2,8,12] y) { y = Upsample<mode="linear",
    scales=[1.0,1.0,2.0,3.0]>(x) }
upsample_nearest_input 9: (float[N,2,4,4] x) => (float[N,2,8,8] y) { s = Constant<value=float[4]
    {1,1,2,2}>() y = Upsample<mode="nearest">(x, s) }
upsample_linear_input 9: (float[N,2,4,4] x) => (float[N,2,8,12] y) { s = Constant<value=float[4]
    {1,1,2,3}>() y = Upsample<mode="linear">(x, s) }
upsample_dynamic 9: (float[N,2,4,4] x, float[4] s) => (float[N,2,H,W] y) { y = Upsample<mode="nearest">(x,
    s) }
resize10_nearest 10: (float[N,2,4,4] x) => (float[N,2,H,W] y) { s = Constant<value=float[4] {1,1,2,1.5}>() y
    = Resize<mode="nearest">(x, s) }
resize10_linear 10: (float[N,2,4,4] x) => (float[N,2,H,W] y) { s = Constant<value=float[4] {1,1,2,3}>() y =
    Resize<mode="linear">(x, s) }
resize10_down 10: (float[N,2,8,8] x) => (float[N,2,H,W] y) { s = Constant<value=float[4] {1,1,0.5,0.5}>() y
    = Resize<mode="nearest">(x, s) }
resize10_lindown 10: (float[N,2,8,8] x) => (float[N,2,H,W] y) { s = Constant<value=float[4] {1,1,0.5,0.6}>()
    y = Resize<mode="linear">(x, s) }
reshape 7,8,9,10: (float[N,2,4] x) => (float[N,8] y) { s = Constant<value=int64[2] {0,-1}>() y = Reshape(x,
    s) }
bn 7,8,9,10: (float[N,2,4] x) => (float[N,2,4] y) { s = Constant<value=float[2] {1.5,0.5}>() b =
    Constant<value=float[2] {0.1,-0.2}>() m = Constant<value=float[2] {0.3,-0.1}>() v =
    Constant<value=float[2] {1.5,0.7}>() y = BatchNormalization<epsilon=0.01>(x,s,b,m,v) }
bn_spatial1 7,8: (float[N,2,4] x) => (float[N,2,4] y) { s = Constant<value=float[2] {1.5,0.5}>() b =
    Constant<value=float[2] {0.1,-0.2}>() m = Constant<value=float[2] {0.3,-0.1}>() v =
    Constant<value=float[2] {1.5,0.7}>() y = BatchNormalization<spatial=1>(x,s,b,m,v) }
bn_spatial0 7,8: (float[N,2,2] x) => (float[N,2,2] y) { s = Constant<value=float[2,2] {1.5,0.5,1,2}>() b =
    Constant<value=float[2,2] {0.1,-0.2,1,2}>() m = Constant<value=float[2,2] {0.3,-0.1,1,2}>() v =
    Constant<value=float[2,2] {1.5,0.7,1,2}>() y = BatchNormalization<spatial=0>(x,s,b,m,v) }
dropout 7,8,9,10: (float[N,4] x) => (float[N,4] y) { y = Dropout<ratio=0.3>(x) }
slice_attr 7,8,9: (float[N,4,6] x) => (float[N,2,5] y) { y = Slice<axes=[1,2], starts=[1,-6],
    ends=[3,-1]>(x) }
slice_noaxes 7,8,9: (float[N,4,6] x) => (float[M,2,4] y) { y = Slice<starts=[0,1,2],
    ends=[9223372036854775807,3,6]>(x) }
slice_int32max 7,8,9: (float[N,4,6] x) => (float[N,3,6] y) { y = Slice<axes=[1], starts=[1],
    ends=[2147483647]>(x) }
slice10 10: (float[N,4,6] x) => (float[N,2,3] y) { s = Constant<value=int64[2] {3,0}>() e =
    Constant<value=int64[2] {1,6}>() a = Constant<value=int64[2] {1,2}>() t = Constant<value=int64[2]
    {-1,2}>() y = Slice(x,s,e,a,t) }
pad 7,8,9,10: (float[N,4] x) => (float[N,8] y) { y = Pad<pads=[0,1,0,3], value=0.5>(x) }
pad_reflect 7,8,9,10: (float[N,2,4,4] x) => (float[N,2,6,6] y) { y = Pad<mode="reflect",
    pads=[0,0,1,1,0,0,1,1]>(x) }
pad_edge_neg 7,8,9,10: (float[N,4] x) => (float[N,4] y) { y = Pad<mode="edge", pads=[0,-1,0,1]>(x) }
clip 7,8,9,10: (float[N,4] x) => (float[N,4] y) { y = Clip<min=-0.5, max=0.6>(x) }
clip_min 7,8,9,10: (float[N,4] x) => (float[N,4] y) { y = Clip<min=0.0>(x) }
topk_attr 7,8,9: (float[N,6] x) => (float[N,2] y, int64[N,2] i) { y, i = TopK<k=2, axis=1>(x) }
topk10 10: (float[N,6] x) => (float[N,2] y, int64[N,2] i) { k = Constant<value=int64[1] {2}>() y, i =
    TopK(x, k) }
softmax 7,8,9,10: (float[N,3,4] x) => (float[N,3,4] y) { y = Softmax(x) }
softmax_neg 7,8,9,10: (float[N,3,4] x) => (float[N,3,4] y) { y = LogSoftmax<axis=-1>(x) }
logsoftmax 7,8,9,10: (float[N,3,4] x) => (float[N,3,4] y) { y = LogSoftmax<axis=1>(x) }
hardmax 7,8,9,10: (float[N,3,4] x) => (float[N,3,4] y) { y = Hardmax(x) }
gemm 7,8,9,10: (float[N,4] x) => (float[N,3] y) { w = Constant<value=float[3,4] {1,2,3,4,5,6,7,8,9,1,2,3}>()
    b = Constant<value=float[3] {1,2,3}>() y = Gemm<transB=1, alpha=0.5, beta=2.0>(x,w,b) }
prelu 7,8,9,10: (float[N,3,4] x) => (float[N,3,4] y) { s = Constant<value=float[3,1] {0.1,0.2,0.3}>() y =
    PRelu(x,s) }
add 7,8,9,10: (float[N,3,4] x) => (float[N,3,4] y) { s = Constant<value=float[3,1] {0.1,0.2,0.3}>() a =
    Add(x,s) y = Mul(a,s) }
maxpool 7,8,9,10: (float[N,2,5,5] x) => (float[N,2,H,W] y) { y = MaxPool<kernel_shape=[2,2], strides=[2,2],
    pads=[0,0,1,1]>(x) }
maxpool_ceil 10: (float[N,2,5,5] x) => (float[N,2,H,W] y) { y = MaxPool<kernel_shape=[2,2], strides=[2,2],
    ceil_mode=1>(x) }
avgpool 7,8,9,10: (float[N,2,5,5] x) => (float[N,2,H,W] y) { y = AveragePool<kernel_shape=[3,3],
    pads=[1,1,1,1], count_include_pad=1>(x) }
convt 7,8,9,10: (float[N,2,3,3] x, float[2,1,2,2] w) => (float[N,1,H,W] y) { y =
    ConvTranspose<strides=[2,2], output_padding=[1,1]>(x,w) }
cast 7,8,9,10: (float[N,4] x) => (int64[N,4] y) { y = Cast<to=7>(x) }
expand 8,9,10: (float[N,1,4] x) => (float[N,3,4] y) { s = Constant<value=int64[3] {1,3,1}>() y = Expand(x,s)
    }
onehot 9,10: (int64[N] x) => (float[N,4] y) { d = Constant<value=int64 {4}>() v = Constant<value=float[2]
    {0,1}>() y = OneHot(x,d,v) }
squeeze 7,8,9,10: (float[N,1,4] x) => (float[N,1,4] y) { s = Squeeze<axes=[1]>(x) y = Unsqueeze<axes=[1]>(s)
    }
split 7,8,9,10: (float[N,4] x) => (float[N,1] y, float[N,3] z) { y, z = Split<axis=1, split=[1,3]>(x) }
reduce 7,8,9,10: (float[N,3,4] x) => (float[N] y, float[N,3] z, float[N,1,4] q) { y = ReduceSum<axes=[1,2],
    keepdims=0>(x) z = ReduceMean<axes=[2], keepdims=0>(x) q = ReduceMax<axes=[1]>(x) }
argmax 7,8,9,10: (float[N,4] x) => (int64[N,1] y) { y = ArgMax<axis=1>(x) }
flatten 7,8,9,10: (float[N,2,4] x) => (float[N,8] y) { y = Flatten<axis=1>(x) }
lstm 7,8,9,10: (float[5,2,3] x, float[1,16,3] w, float[1,16,4] r) => (float[5,1,2,4] y) { y =
    LSTM<hidden_size=4>(x, w, r) }
gru 7,8,9,10: (float[5,2,3] x, float[1,12,3] w, float[1,12,4] r) => (float[5,1,2,4] y) { y =
    GRU<hidden_size=4, linear_before_reset=1>(x, w, r) }
rnn 7,8,9,10: (float[5,2,3] x, float[1,4,3] w, float[1,4,4] r) => (float[5,1,2,4] y) { y =
    RNN<hidden_size=4>(x, w, r) }
where 9,10: (float[N,4] x) => (float[N,4] y) { z = Constant<value=float {0}>() g = Greater(x,z) y =
    Where(g,x,z) }
compare 7,8,9,10: (float[N,4] x) => (float[N,4] y) { z = Constant<value=float {0.1}>() g = Greater(x,z) l =
    Less(x,z) n = Not(l) a = And(g,n) y = Cast<to=1>(a) }
sum 7,8,9,10: (float[N,4] x) => (float[N,4] y) { z = Constant<value=float[4] {1,2,3,4}>() s = Sum(x,x) m =
    Max(s,x) y = Mean(m,x) }
sum_bc 8,9,10: (float[N,4] x) => (float[N,4] y) { z = Constant<value=float[4] {1,2,3,4}>() s = Sum(x,z) m =
    Max(s,z) n = Min(m,z) y = Mean(n,z) }
pow 7,8,9,10: (float[N,4] x) => (float[N,4] y) { t = Constant<value=float {2}>() y = Pow(x,t) }
constantofshape 9,10: (float[N,4] x) => (float[N,4] y) { s = Shape(x) z = ConstantOfShape<value = float[1]
    {2}>(s) y = Add(x,z) }
nonzero 9,10: (float[N,4] x) => (int64[2,K] y) { y = NonZero(x) }
scatter 9,10: (float[N,4] x, int64[N,2] i, float[N,2] u) => (float[N,4] y) { y = Scatter<axis=1>(x,i,u) }
nested_if 7,8,9,10: (float[N,4] x, bool c) => (float[N,4] y) { y = If(c) < then_branch = t () => (float[N,4]
    p) { p = Softmax(x) }, else_branch = e () => (float[N,4] q) { q = Clip<min=0.0>(x) }> }
if_slice 7,8,9: (float[N,4] x, bool c) => (float[N,2] y) { y = If(c) < then_branch = t () => (float[N,2] p)
    { p = Slice<axes=[1],starts=[0],ends=[2]>(x) }, else_branch = e () => (float[N,2] q) { q =
    Slice<axes=[1],starts=[1],ends=[3]>(x) }> }
loop 7,8,9,10: (float[2,4] x) => (float[2,4] y) { n = Constant<value=int64 {3}>() t = Constant<value=bool
    {1}>() y = Loop(n, t, x) < body = b (int64 i, bool k, float[2,4] a) => (bool k2, float[2,4] d) { k2 =
    Identity(k) d = Add(a, x) } > }
loop_with_a_clip 9: (float[2,4] x) => (float[2,4] y) { n = Constant<value=int64 {3}>() o =
    Constant<value=int64 {1}>() t = Cast<to=9>(o) y = Loop(n, t, x) < body = b (int64 i, bool k, float[2,4]
    a) => (bool k2, float[2,4] d) { o2 = Constant<value=int64 {1}>() k2 = Cast<to=9>(o2) d =
    Clip<max=2.0>(a) } > }
scan9 9,10: (float[3] h, float[5,3] x) => (float[3] g, float[5,3] y) { g, y = Scan<num_scan_inputs=1, body =
    b (float[3] a, float[3] v) => (float[3] p, float[3] q) { p = Add(a, v) q = Tanh(p) }>(h, x) }
quantize 10: (float[N,4] x) => (float[N,4] y) { s = Constant<value=float {0.1}>() z = Constant<value=uint8
    {128}>() q = QuantizeLinear(x,s,z) y = DequantizeLinear(q,s,z) }
resize_nearest_reduced 10: (float[N,2,9,9] x) => (float[N,2,H,W] y) { s = Constant<value=float[4]
    {1,1,0.7,0.4}>() y = Resize<mode="nearest">(x, s) }
resize_nearest_not_whole 10: (float[N,2,9,9] x) => (float[N,2,H,W] y) { s = Constant<value=float[4]
    {1,1,1.3,2.5}>() y = Resize<mode="nearest">(x, s) }
softmax_of_unknown_rank 7,10: (float[2,3,4] x, int64[3] s) => (float[2,3,4] y) { r = Reshape(x,s) y =
    Softmax<axis=1>(r) }
"""


def read(entry: str) -> tuple[str, tuple[tuple[int, ...], str]]:
    """Return the name, the opsets and the graph."""
    head, _, graph = entry.partition(": ")
    name, opsets = head.split()
    return name, (tuple(map(int, opsets.split(","))), graph)


OLDER = dict(map(read, TABLE.rstrip().replace("\n    ", " ").split("\n")))
