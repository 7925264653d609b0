"""Small graphs and what is said of their nodes, by topic."""

from tests.unit.plan.cases.case import read_cases

# Convolutions, and what disappears into them.
CONV = read_cases("""
conv: float[N,3,8,8] x | float[4,3,3,3] w, float[4] b | y = Conv(x, w, b)
    -> integer y
conv_without_bias: float[N,3,8,8] x | float[4,3,3,3] w | y = Conv(x, w)
    -> integer y
conv_with_empty_bias: float[N,3,8,8] x | float[4,3,3,3] w | y = Conv(x, w, )
    -> integer y
conv_1d: float[N,3,16] x | float[4,3,3] w, float[4] b | y = Conv(x, w, b)
    -> integer y
conv_3d: float[N,3,6,6,6] x | float[4,3,3,3,3] w, float[4] b | y = Conv(x, w, b)
    -> integer y
conv_grouped: float[N,4,9,9] x | float[6,2,3,3] w | y = Conv<group=2, dilations=[2,2], pads=[1,1,1,1]>(x, w)
    -> integer y
conv_same_upper: float[N,3,8,8] x | float[4,3,3,3] w | y = Conv<auto_pad="SAME_UPPER", strides=[2,2]>(x, w)
    -> integer y
depthwise: float[N,4,8,8] x | float[4,1,3,3] w, float[4] b | y = Conv<group=4>(x, w, b)
    -> integer y
conv_relu: float[N,3,8,8] x | float[4,3,3,3] w, float[4] b | c = Conv(x, w, b) y = Relu(c)
    -> integer c y
conv_clip: float[N,3,8,8] x | float[4,3,3,3] w, float low = {0}, float high = {6} | c = Conv(x, w)
    y = Clip(c, low, high)
    -> integer c y
conv_clip_around_zero: float[N,3,8,8] x | float[4,3,3,3] w, float low = {-0.7}, float high = {0.4} |
    c = Conv(x, w) y = Clip(c, low, high)
    -> integer c y
conv_clip_without_bounds: float[N,3,8,8] x | float[4,3,3,3] w | c = Conv(x, w) y = Clip(c)
    -> integer c y
conv_clip_above: float[N,3,8,8] x | float[4,3,3,3] w, float high = {1} | c = Conv(x, w) y = Clip(c, , high)
    -> integer c y
conv_clip_to_positive: float[N,3,8,8] x | float[4,3,3,3] w, float low = {0.1}, float high = {0.5} |
    c = Conv(x, w) y = Clip(c, low, high)
    -> integer c; y: its bound 'low' excludes 0
conv_clip_to_negative: float[N,3,8,8] x | float[4,3,3,3] w, float high = {-0.1} | c = Conv(x, w)
    y = Clip(c, , high)
    -> integer c; y: its bound 'high' excludes 0
conv_clip_computed_bound: float[N,3,8,8] x, float low | float[4,3,3,3] w | c = Conv(x, w) y = Clip(c, low)
    -> integer c; y: its bound 'low' is computed at run time
conv_hardswish: float[N,3,8,8] x | float[4,3,3,3] w | c = Conv(x, w) y = HardSwish(c)
    -> integer c; y: no integer operator reads it
conv_transpose: float[N,3,8,8] x | float[3,4,3,3] w, float[4] b | y = ConvTranspose(x, w, b)
    -> integer; y: its weight is stored as int8 but computed in float
conv_transpose_grouped: float[N,4,8,8] x | float[4,2,3,3] w | y = ConvTranspose<group=2>(x, w)
    -> integer; y: its weight is stored as int8 but computed in float
two_convs_of_one_input: (float[N,3,8,8] x) => (float[] y, float[] z) <float[3,3,1,1] w, float[4,3,1,1] v> {
    y = Conv(x, w) z = Conv(x, v) }
    -> integer y z
conv_weight_at_run_time: (float[N,3,8,8] x, float[4,3,3,3] k) => (float[] y, float[] z) <float[4,3,3,3] w> {
    y = Conv(x, k) z = Conv(x, w) }
    -> integer z; y: its weight 'k' is computed at run time
conv_bias_at_run_time: (float[N,3,8,8] x, float[4] k) => (float[] y, float[] z) <float[4,3,3,3] w> {
    y = Conv(x, w, k) z = Conv(x, w) }
    -> integer z; y: its bias 'k' is computed at run time
""")

# Gemm and MatMul, with and without a bias.
MATRIX = read_cases("""
gemm: float[N,8] x | float[8,4] w, float[4] b | y = Gemm(x, w, b)
    -> integer y
gemm_transposed_weight: float[N,8] x | float[4,8] w, float[4] b | y = Gemm<transB=1>(x, w, b)
    -> integer y
gemm_transposed_input: float[8,6] x | float[8,4] w, float[4] b | y = Gemm<transA=1>(x, w, b)
    -> integer y
gemm_without_bias: float[N,8] x | float[8,4] w | y = Gemm(x, w)
    -> integer y
gemm_bias_of_one_element: float[N,8] x | float[8,4] w, float[1] b | y = Gemm(x, w, b)
    -> integer y
gemm_scalar_bias: float[N,8] x | float[8,4] w, float b = {0.5} | y = Gemm(x, w, b)
    -> integer y
gemm_row_bias: float[N,8] x | float[8,4] w, float[1,4] b | y = Gemm(x, w, b)
    -> integer y
gemm_relu_gemm: float[N,8] x | float[8,4] w, float[4] b, float[4,4] v | h = Gemm(x, w, b) r = Relu(h)
    y = Gemm(r, v)
    -> integer h r y
gemm_relu: float[N,8] x | float[8,4] w, float[4] b | h = Gemm(x, w, b) y = Relu(h)
    -> integer h; y: its result is not quantized
gemm_alpha: float[N,8] x | float[8,4] w, float[4] b, float[4,4] v | h = Gemm<alpha=0.5>(x, w, b)
    y = MatMul(h, v)
    -> integer y; h: alpha is 0.5, the integer kernel needs 1
gemm_beta: float[N,8] x | float[8,4] w, float[4] b, float[4,4] v | h = Gemm<beta=2.0>(x, w, b)
    y = MatMul(h, v)
    -> integer y; h: beta is 2, the integer kernel needs 1
gemm_full_bias: float[2,8] x | float[8,4] w, float[2,4] b, float[4,4] v | h = Gemm(x, w, b) y = MatMul(h, v)
    -> integer y; h: its bias 'b' is not a vector over the output channels
gemm_transpose: float[N,8] x | float[8,4] w | h = Gemm(x, w) y = Transpose<perm=[1,0]>(h)
    -> integer h; y: no integer operator reads it
gemm_sum: float[N,8] x, float[N,4] z | float[8,4] w | h = Gemm(x, w) y = Sum(h, z)
    -> integer h; y: no rule for Sum
gemm_add: float[N,8] x, float[N,4] z | float[8,4] w | h = Gemm(x, w) y = Add(h, z)
    -> integer h; y: no integer operator reads it
matmul: float[N,5,8] x | float[8,4] w | y = MatMul(x, w)
    -> integer y
matmul_bias: float[N,5,8] x | float[8,4] w, float[4] b | m = MatMul(x, w) y = Add(m, b)
    -> integer m; y: bias of m, added to its float result
matmul_bias_fixed_shape: float[2,5,8] x | float[8,4] w, float[4] b | m = MatMul(x, w) y = Add(b, m)
    -> integer m y
matmul_bias_2d: float[N,8] x | float[8,4] w, float[4] b | m = MatMul(x, w) y = Add(m, b)
    -> integer m y
matmul_row_bias_2d: float[N,8] x | float[8,4] w, float[1,4] b | m = MatMul(x, w) y = Add(m, b)
    -> integer m y
matmul_bias_that_adds_an_axis: float[8] x | float[8,4] w, float[1,4] b | m = MatMul(x, w) y = Add(m, b)
    -> integer m; y: no integer operator reads it
matmul_column_2d: float[3,8] x | float[8,4] w, float[3,1] b | m = MatMul(x, w) y = Add(m, b)
    -> integer m; y: no integer operator reads it
matmul_scalar_2d: float[N,8] x | float[8,4] w, float[1] b | m = MatMul(x, w) y = Add(m, b)
    -> integer m; y: no integer operator reads it
matmul_residual_2d: float[N,8] x | float[8,8] w | m = MatMul(x, w) y = Add(x, m)
    -> integer m; y: no integer operator reads it
matmul_pair_2d: float[N,8] x | float[8,8] w, float[8,8] v | m = MatMul(x, w) n = MatMul(x, v) y = Add(m, n)
    -> integer m n; y: no integer operator reads it
matmul_residual_3d: float[2,5,8] x | float[8,8] w | m = MatMul(x, w) y = Add(m, x)
    -> integer m; y: no integer operator reads it
matmul_bias_relu_matmul: float[N,5,8] x | float[8,4] w, float[4] b, float[4,4] v | m = MatMul(x, w)
    s = Add(b, m) r = Relu(s) y = MatMul(r, v)
    -> integer m y; s: bias of m, added to its float result; r: disappears into the quantized range
matmul_bias_relu_matmul_2d: float[N,8] x | float[8,4] w, float[4] b, float[4,4] v | m = MatMul(x, w)
    s = Add(b, m) r = Relu(s) y = MatMul(r, v)
    -> integer m s r y
matmul_of_activations: (float[N,5,8] x, float[N,8,5] z) => (float[] y) { y = MatMul(x, z) }
    -> integer y
matmul_of_activations_plus_bias: float[4,8] x, float[8,4] z | float[4] b | m = MatMul(x, z) y = Add(m, b)
    -> integer m; y: no integer operator reads it
matmul_constant_left: float[N,8,5] x | float[6,8] k, float[5,4] w | m = MatMul(k, x) y = MatMul(m, w)
    -> integer y; m: reads the constant 'k'
matmul_batched_weight: float[2,5,8] x | float[2,8,4] w | y = MatMul(x, w)
    -> integer y
matmul_vector_weight: float[N,5,8] x | float[8] w | y = MatMul(x, w)
    -> integer y
matmul_vector_input: float[8] x | float[8,4] w, float[4] b | m = MatMul(x, w) y = Add(m, b)
    -> integer m y
matmul_of_integers: (int32[N,4] i) => (int32[] y, float[] z) <int32[4,2] e = {1,2,3,4,5,6,7,8}, float[4,4]
    w> { y = MatMul(i, e) f = Cast<to=1>(i) z = MatMul(f, w) }
    -> integer z; y: 'i' is int32, not float; f: no integer Cast
matmul_of_doubles: (double[N,4] x) => (double[] y, float[] z) <double[4,2] e = {1,2,3,4,5,6,7,8}, float[4,4]
    w> { y = MatMul(x, e) f = Cast<to=1>(x) z = MatMul(f, w) }
    -> integer z; y: 'x' is double, not float; f: no integer Cast
matmul_of_float16: (float16[N,4] x) => (float16[] y, float[] z) <float16[4,2] e = {1,2,3,4,5,6,7,8},
    float[4,4] w> { y = MatMul(x, e) f = Cast<to=1>(x) z = MatMul(f, w) }
    -> integer z; y: 'x' is float16, not float; f: no integer Cast
embedding: int64[N,4] i | float[4,8] e, float[8,8] w | g = Gather(e, i) y = MatMul(g, w)
    -> integer y; g: looks up rows of the table 'e'
""")

# Operators that are integer when all their sides are.
JOIN = read_cases("""
add_before_conv: image | | a = Add(c, x)
    -> integer c a y
add_relu_before_conv: image | | s = Add(c, x) a = Relu(s)
    -> integer c s a y
add_before_norm_only: float[N,5,8] x | float[8,8] w, float[8] s, float[8] t | m = MatMul(x, w) r = Add(m, x)
    y = LayerNormalization(r, s, t)
    -> integer m; r: no integer operator reads it; y: no integer LayerNormalization
add_of_one_value: rows | | a = Add(g, g)
    -> integer g a y
add_broadcast: float[N,5,8] x, float[N,1,8] z | float[8,8] w | a = Add(x, z) y = MatMul(a, w)
    -> integer a y
add_constant: rows | float[4,8] k | a = Add(g, k)
    -> integer g y; a: reads the constant 'k'
mul: image | | a = Mul(c, x)
    -> integer c a y
mul_broadcast: float[N,5,8] x, float[N,1,8] z | float[8,8] w | a = Mul(x, z) y = MatMul(a, w)
    -> integer a y
mul_relu: image | | m = Mul(c, x) a = Relu(m)
    -> integer c m a y
squeeze_and_excite: image | float[3,3,1,1] k | p = GlobalAveragePool(c) q = Conv(p, k) s = Sigmoid(q)
    a = Mul(c, s)
    -> integer c p q s a y
silu: image | | s = Sigmoid(c) a = Mul(c, s)
    -> integer c s a y
leaky_relu: image | | a = LeakyRelu<alpha=0.1>(c)
    -> integer c a y
where: float[N,4,8] x, bool[N,4,8] m | float[8,8] u, float[8,8] v | g = MatMul(x, u) a = Where(m, g, x)
    y = MatMul(a, v)
    -> integer g a y
concat: image | | s = Concat<axis=2>(c, x, c) a = Relu(s)
    -> integer c s a y
concat_for_the_output: float[N,3,8,8] x | float[3,3,1,1] w | c = Conv(x, w) y = Concat<axis=1>(c, x)
    -> integer c; y: no integer operator reads it
concat_constant: float[4,3,8] x | float[4,1,8] k, float[8,6] w | a = Concat<axis=1>(k, x) y = MatMul(a, w)
    -> integer y; a: reads the constant 'k'
average_pool: image | | a = AveragePool<kernel_shape=[2,2], strides=[2,2], pads=[1,1,1,1]>(c)
    -> integer c a y
average_pool_ceil: image | | a = AveragePool<kernel_shape=[3,3], strides=[2,2], ceil_mode=1>(c)
    -> integer c a y
average_pool_ceil_counts_pads: image | | a = AveragePool<kernel_shape=[3,3], strides=[2,2], ceil_mode=1,
    count_include_pad=1>(c)
    -> integer c; a: the integer kernel is wrong with both ceil_mode and count_include_pad; y: reads
       AveragePool 'a': the integer kernel is wrong
average_pool_dilated: image | | a = AveragePool<kernel_shape=[3,3], dilations=[2,2]>(c)
    -> integer c; a: dilations is [2, 2], the integer kernel needs 1; y: reads AveragePool 'a': dilations is
       [2, 2]
global_average_pool: float[N,3,8,8] x | float[3,3,1,1] w, float[3,4] v | c = Conv(x, w) r = Relu(c)
    g = GlobalAveragePool(r) f = Flatten(g) y = Gemm(f, v)
    -> integer c r g f y; f shares g
global_average_pool_1d: float[N,3,16] x | float[3,3,3] w, float[3,3,1] v | c = Conv(x, w)
    a = GlobalAveragePool(c) y = Conv(a, v)
    -> integer c a y
residual_block: image | | r = Relu(c) d = Conv(r, w) s = Add(r, d) a = Relu(s)
    -> integer c r d s a y
""")

# Operators that only move values.
MOVE = read_cases("""
max_pool: image | | a = MaxPool<kernel_shape=[2,2], strides=[2,2]>(c)
    -> integer c a y; a shares c
max_pool_of_the_input: float[N,3,8,8] x | float[3,3,1,1] w | a = MaxPool<kernel_shape=[2,2]>(x)
    y = Conv(a, w)
    -> integer a y; a shares x
max_pool_3d: float[N,3,4,4,4] x | float[3,3,1,1,1] w | a = MaxPool<kernel_shape=[2,2,2]>(x) y = Conv(a, w)
    -> integer a y; a shares x
max_pool_with_indices: image | | a, i = MaxPool<kernel_shape=[2,2]>(c) | float[] y, int64[] i
    -> integer c y; a: its second output 'i' is used too
relu_max_pool: image | | r = Relu(c) a = MaxPool<kernel_shape=[2,2]>(r)
    -> integer c r a y; a shares r
reshape_transpose: float[N,8] x | float[8,8] u, int64[3] s = {-1,2,4}, float[2,4] w | g = Gemm(x, u)
    r = Reshape(g, s) t = Transpose<perm=[0,2,1]>(r) y = MatMul(t, w)
    -> integer g r t y; r shares g; t shares g
reshape_of_a_float: float[N,16] x | float[8,8] w, int64[3] s = {0,2,8} | t = Tanh(x) r = Reshape(t, s)
    y = MatMul(r, w)
    -> integer r y; t: no integer Tanh; r shares t
squeeze_unsqueeze: rows | int64[1] k = {1} | s = Unsqueeze(g, k) a = Squeeze(s, k)
    -> integer g s a y; s shares g; a shares g
slice: rows | int64[1] k = {1}, int64[1] e = {3} | a = Slice(g, k, e, k)
    -> integer g a y; a shares g
gather_one: float[N,4,8] x | float[8,8] u, float[8,4] w, int64 k = {0} | g = MatMul(x, u)
    a = Gather<axis=1>(g, k) y = Gemm(a, w)
    -> integer g a y; a shares g
gather_some: image | int64[3] k = {0,1,2} | a = Gather<axis=2>(c, k)
    -> integer c a y; a shares c
expand: float[N,1,8] x | float[8,8] u, float[8,4] w, int64[3] k = {1,3,1} | g = MatMul(x, u)
    a = Expand(g, k) y = MatMul(a, w)
    -> integer g a y; a shares g
tile: image | int64[4] k = {1,1,2,2} | a = Tile(c, k)
    -> integer c a y; a shares c
depth_to_space: image | | s = Concat<axis=1>(c, c, c, c) a = DepthToSpace<blocksize=2>(s)
    -> integer c s a y; a shares s
resize_nearest: image | float[4] k = {1,1,2,2} | a = Resize<mode="nearest">(c, , k)
    -> integer c a y; a shares c
resize_linear: image | float[4] k = {1,1,2,2} | a = Resize<mode="linear">(c, , k)
    -> integer c y; a: mode is linear, the integer kernel needs nearest
split: image | | d, b = Split<axis=3, num_outputs=2>(c) a = Add(d, b)
    -> integer c d a y; d shares c; b shares c
split_for_one_reader: image | | a, b = Split<axis=3, num_outputs=2>(c) t = Tanh(b) | float[] y, float[] t
    -> integer c a y; t: no integer Tanh; a shares c; b shares c
split_with_an_output_of_no_use: image | | a, b = Split<axis=3, num_outputs=2>(c)
    -> integer c y; a: its output 'b' is not used, so it cannot be quantized
split_of_an_input: float[N,8,8] x | float[4,8] w, float[4,8] v | a, b = Split<axis=2, num_outputs=2>(x)
    l = MatMul(a, w) r = MatMul(b, v) y = Tanh(l)
    -> integer a l r; y: no integer Tanh; a shares x; b shares x
reduce_max: image | int64[1] k = {3} | a = ReduceMax<keepdims=1>(c, k)
    -> integer c a y; a shares c
reduce_min: image | int64[1] k = {3} | a = ReduceMin<keepdims=1>(c, k)
    -> integer c a y; a shares c
gather_elements: float[2,4,8] x, int64[2,4,8] i | float[8,8] u, float[8,8] v | g = MatMul(x, u)
    a = GatherElements<axis=1>(g, i) y = MatMul(a, v)
    -> integer g a y; a shares g
pad: image | int64[8] k = {0,0,1,1,0,0,1,1} | a = Pad(c, k)
    -> integer c y; a: no integer Pad
relu_between_moves: rows | int64[3] k = {0,0,8} | s = Reshape(g, k) a = Relu(s)
    -> integer g y; s: no integer operator reads it; a: disappears into the quantized range
relu_read_beside_its_input: image | | r = Relu(c) a = Add(r, c)
    -> integer c a y; r: disappears into the quantized range
""")

# Attention, and its masks.
ATTENTION = read_cases("""
attention: float[N,4,8] x | float[8,8] wq, float[8,8] wk, float[8,8] wv, float[8,8] wo, float[8] bo, float k
    = {0.35} | q = MatMul(x, wq) m = MatMul(x, wk) v = MatMul(x, wv) t = Transpose<perm=[0,2,1]>(m)
    s = MatMul(q, t) d = Mul(s, k) p = Softmax(d) o = MatMul(p, v) h = MatMul(o, wo) a = Add(h, bo)
    y = Add(a, x)
    -> integer q m v t s o h; d: no integer operator reads it; p: integer Softmax turns; a: bias of h; y: no
       integer operator reads it; t shares m
residual_after_norm: float[N,4,8] x | float[8] s, float[8] t, float[8,8] w, float[8] b |
    l = LayerNormalization(x, s, t) m = MatMul(l, w) a = Add(m, b) y = Add(a, l)
    -> integer m; l: no integer LayerNormalization; a: bias of m; y: no integer operator reads it
softmax_between_integers: float[N,8,4] x | float[8,8,1] w, float[8,8,1] v | c = Conv(x, w)
    t = Transpose<perm=[0,2,1]>(c) s = Softmax(t) u = Transpose<perm=[0,2,1]>(s) y = Conv(u, v)
    -> integer c; t: no integer operator reads it; s: integer Softmax turns; u: no integer operator reads
       it; y: reads Softmax 's', which must not be integer
softmax_of_what_others_quantize_later: float[N,8,8] x | float[8,8] w, float[8,8] v, float[8,8] u |
    g = MatMul(x, w) s = Softmax(g) p = MatMul(s, v) q = MatMul(g, u) y = Add(p, q)
    -> integer g q; s: integer Softmax turns; p: reads Softmax 's', which must not be integer; y: no integer
       operator reads it
mask_constant: float[N,4,4] q, float[N,4,4] v | float[4,4] k, float[4,4] mask =
    {0,-10000,-10000,-10000,0,0,-10000,-10000,0,0,0,-10000,0,0,0,0} | s = MatMul(q, k) a = Add(s, mask)
    p = Softmax(a) y = MatMul(p, v)
    -> integer s y; a: attention mask: with its huge constant in the range; p: integer Softmax turns
mask_read_by_matmul: float[N,4,4] q, float[N,4,4] v | float[4,4] k, float[4,4] mask =
    {0,-10000,-10000,-10000,0,0,-10000,-10000,0,0,0,-10000,0,0,0,0} | s = MatMul(q, k) a = Add(s, mask)
    y = MatMul(a, v)
    -> integer s; a: attention mask: with its huge constant in the range; y: reads an attention mask
mask_moved_before_it_is_read: float[N,4,4] q, float[N,4,4] v | float[4,4] k, float[4,4] mask =
    {0,-10000,-10000,-10000,0,0,-10000,-10000,0,0,0,-10000,0,0,0,0}, int64[3] z = {0,0,0} | s = MatMul(q, k)
    a = Add(mask, s) r = Reshape(a, z) t = Transpose<perm=[0,2,1]>(r) y = MatMul(t, v)
    -> integer s; a: attention mask: with its huge constant in the range; r: no integer operator reads it;
       t: no integer operator reads it; y: reads an attention mask
mask_computed: float[N,4,4] q, float[N,4,4] v, int64[N,1,4] m | float[4,4] k, float one = {1}, float big =
    {-10000}, int64[1] z = {1} | s = MatMul(q, k) f = Cast<to=1>(m) i = Sub(one, f) b = Mul(i, big)
    u = Unsqueeze(b, z) g = Squeeze(u, z) a = Add(g, s) y = MatMul(a, v)
    -> integer s; f: Cast; i: Sub; b: no integer operator reads it; u: no integer operator reads it; g: no
       integer operator reads it; a: attention mask: with its huge constant in the range; y: reads an
       attention mask
mask_subtracted: float[N,4,4] q, float[N,4,4] v, float[N,1,4] m | float[4,4] k, float one = {1}, float big =
    {10000} | s = MatMul(q, k) i = Sub(one, m) b = Mul(i, big) a = Sub(s, b) y = MatMul(a, v)
    -> integer s; i: Sub; b: no integer operator reads it; a: attention mask: with its huge constant in the
       range; y: reads an attention mask
mask_by_where: float[N,4,4] q, float[N,4,4] v, bool[N,1,4] m | float[4,4] k, float big = {-3.4e38} |
    s = MatMul(q, k) a = Where(m, s, big) p = Softmax(a) y = MatMul(p, v)
    -> integer s y; a: attention mask: with its huge constant in the range; p: integer Softmax turns
mask_by_where_and_add: float[N,4,4] q, float[N,4,4] v, bool[N,1,4] m | float[4,4] k, float big = {-3.4e38},
    float zero = {0} | s = MatMul(q, k) w = Where(m, zero, big) a = Add(s, w) p = Softmax(a)
    y = MatMul(p, v)
    -> integer s y; w: attention mask: with its huge constant in the range; a: attention mask: with its huge
       constant in the range; p: integer Softmax turns
large_shift_is_no_mask: float[N,4,8] x | float[8,8] u, float k = {20000} | a = Add(x, k) g = Sub(a, k)
    y = MatMul(g, u)
    -> integer y; a: no integer operator reads it; g: no integer Sub
""")

# Outputs, shared constants, nested graphs: what breaks passes.
ODD = read_cases("""
shared_weight: float[N,8] x | float[8,8] w, float[8] b | h = Gemm(x, w, b) r = Relu(h) y = Gemm(r, w, b)
    -> integer h r y
shared_weight_on_two_axes: float[N,8] x | float[8,8] w | h = Gemm<transB=1>(x, w) y = Gemm(h, w)
    -> integer h y
weight_read_by_a_float_operator: (float[N,8] x) => (float[] y, float[] z) <float[8,8] w> { y = Gemm(x, w)
    z = Mul(w, w) }
    -> integer y; z: no integer operator reads it
output_that_is_read: image | | a = Identity(c) | float[] c, float[] y
    -> integer c a y; a shares c
output_behind_a_relu: image | | a = Relu(c) | float[] c, float[] y
    -> integer c y; a: disappears into the quantized range
bias_add_whose_product_is_an_output: (float[N,8] x) => (float[] m, float[] y) <float[8,8] w, float[8] b> {
    m = MatMul(x, w) y = Add(m, b) }
    -> integer m; y: no integer operator reads it
input_that_is_an_output: (float[N,3,8,8] x) => (float[] y, float[N,3,8,8] x) <float[3,3,1,1] w> {
    y = Conv(x, w) }
    -> integer y
weight_that_is_an_output: (float[N,3,8,8] x) => (float[] y, float[3,3,1,1] w) <float[3,3,1,1] w> {
    y = Conv(x, w) }
    -> integer y
bias_that_is_an_output: (float[N,3,8,8] x) => (float[] y, float[3] b) <float[3,3,1,1] w, float[3] b> {
    y = Conv(x, w, b) }
    -> integer y
product_read_behind_a_relu_and_beside_it: (float[N,8] x) => (float[] y, float[] z) <float[8,8] w, float[8]
    b> { g = Gemm(x, w, b) r = Relu(g) z = Tanh(g) y = MatMul(r, w) }
    -> integer g y; r: disappears into the quantized range; z: Tanh
product_that_is_an_output_and_read_behind_a_relu: (float[N,3,8] x) => (float[] y, float[] m) <float[8,8] w>
    { m = MatMul(x, w) r = Relu(m) y = MatMul(r, w) }
    -> integer m y; r: disappears into the quantized range
relu_before_a_float_operator: (float[N,8] x) => (float[] y) <float[8,8] w, float[8] b, float[8] s, float[8]
    t> { g = Gemm(x, w, b) r = Relu(g) y = LayerNormalization(r, s, t) }
    -> integer g r; y: LayerNormalization
relu_of_an_output_before_a_float_operator: (float[N,3,8] x) => (float[] y, float[] g) <float[8,8] w,
    float[8] s, float[8] t> { g = MatMul(x, w) r = Relu(g) y = LayerNormalization(r, s, t) }
    -> integer g; r: its result is not quantized; y: LayerNormalization
clip_to_positive_before_a_float_operator: (float[N,8] x) => (float[] y) <float[8,8] w, float low = {0.1}> {
    g = Gemm(x, w) r = Clip(g, low) y = Tanh(r) }
    -> integer g; r: its bound 'low' excludes 0; y: Tanh
other_domain: (float[N,3,8,8] x) => (float[N,3,8,8] y) <float[3,3,1,1] w> { c = Conv(x, w)
    y = com.microsoft.Gelu(c) }
    -> integer c; y: no rule for Gelu
float_relu_read_twice: float[N,16] x | float[16,16] w | t = Tanh(x) r = Relu(t) m = Gemm(r, w)
    n = Gemm(t, w) y = Add(m, n)
    -> integer m n; t: Tanh; r: disappears into the quantized range; y: no integer operator reads it
if_reads_values_around_it: (float[N,3,8,8] x, bool k) => (float[] y) <float[3,3,1,1] w> { c = Conv(x, w)
    r = Relu(c) z = If(k) <then_branch = t () => (float[N,3,8,8] p) { p = Identity(c) }, else_branch = e ()
    => (float[N,3,8,8] q) { s = Add(r, x) q = Conv(s, w) }> y = Conv(z, w) }
    -> integer c s q y; r: disappears into the quantized range; z: runs the layers of its nested graph; p:
       no integer operator reads it
loop_reads_a_weight: (float[2,4] x, int64 n, bool k) => (float[2,4] y) <float[4,4] w> { h = MatMul(x, w)
    y = Loop(n, k, h) <body = b (int64 i, bool going, float[2,4] s) => (bool more, float[2,4] t) {
    more = Identity(going) t = MatMul(s, w) }> }
    -> integer h t; y: runs the layers of its nested graph; more: computes bool
""")

CASES = {**CONV, **MATRIX, **JOIN, **MOVE, **ATTENTION, **ODD}
