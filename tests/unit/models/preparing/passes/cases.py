"""Small graphs that a pass rewrites, and near ones that it must leave alone."""

import json
import re
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from tests.unit.plan.graphs import build


@dataclass(frozen=True)
class Case:
    """A graph, values of its constants that are not noise, and its opset; its name begins with its pass."""

    graph: str
    constants: dict[str, float | list[float]]
    opset: int = 20

    def model(self) -> ir.Model:
        arrays = {name: np.array(value, np.float32) for name, value in self.constants.items()}
        return build(self.graph, self.opset, arrays)


def read_cases(table: str) -> dict[str, Case]:
    """Return the cases of a table: a name, a graph, and perhaps where its constants are others than noise."""
    return dict(_case(" ".join(entry.split())) for entry in re.split(r"\n(?=\w)", table.strip()))


def _case(entry: str) -> tuple[str, Case]:
    name, _, drawn = entry.partition(": ")
    graph, _, told = drawn.partition(" where ")
    said = [item for item in told.split("; ") if item]
    constants = dict(item.split(" = ") for item in said if " = " in item)
    opset = next((int(item.removeprefix("opset ")) for item in said if " = " not in item), 20)
    return name, Case(graph, {key: json.loads(value) for key, value in constants.items()}, opset)


REWRITTEN = read_cases("""
batch_norm.conv: (float[N,3,6,6] x) => (float[] y) <float[4,3,3,3] w, float[4] s, float[4] t, float[4] m,
    float[4] v> { c = Conv(x, w) y = BatchNormalization(c, s, t, m, v) }
    where v = [0.5, 1.0, 2.0, 3.0]
batch_norm.conv_with_bias: (float[N,3,6,6] x) => (float[] y) <float[4,3,3,3] w, float[4] b, float[4] s,
    float[4] t, float[4] m, float[4] v> { c = Conv(x, w, b)
    y = BatchNormalization<epsilon=0.01>(c, s, t, m, v) }
    where v = [0.5, 1.0, 2.0, 3.0]
batch_norm.grouped: (float[N,4,6,6] x) => (float[] y) <float[6,2,3,3] w, float[6] s, float[6] v> {
    c = Conv<group=2>(x, w) y = BatchNormalization(c, s, s, s, v) }
    where v = [0.5, 1.0, 2.0, 3.0, 4.0, 5.0]
batch_norm.conv_transpose: (float[N,4,6,6] x) => (float[] y) <float[4,3,3,3] w, float[6] s, float[6] v> {
    c = ConvTranspose<group=2>(x, w) y = BatchNormalization(c, s, s, s, v) }
    where v = [0.5, 1.0, 2.0, 3.0, 4.0, 5.0]
batch_norm.gemm: (float[N,6] x) => (float[] y) <float[6,4] w, float[1,4] b, float[4] s, float[4] t, float[4]
    m, float[4] v> { c = Gemm<alpha=0.5, beta=2.0>(x, w, b) y = BatchNormalization(c, s, t, m, v) }
    where v = [0.5, 1.0, 2.0, 3.0]
batch_norm.shared_weight: (float[N,4,6,6] x) => (float[] y) <float[4,4,1,1] w, float[4] s, float[4] v> {
    c = Conv(x, w) d = BatchNormalization(c, s, s, s, v) e = Conv(d, w)
    y = BatchNormalization(e, s, v, s, v) }
    where v = [0.5, 1.0, 2.0, 3.0]
batch_norm.taken_name: (float[N,3,6,6] x) => (float[] y) <float[4,3,3,3] w, float[4] s, float[4] v,
    float[4,6,1] w_bias> { c = Conv(x, w) d = BatchNormalization(c, s, s, s, v) y = Add(d, w_bias) }
    where v = [0.5, 1.0, 2.0, 3.0]; w_bias = [[[0.0], [1.0], [2.0], [3.0]], [[4.0], [5.0], [6.0], [7.0]],
        [[8.0], [9.0], [10.0], [11.0]], [[12.0], [13.0], [14.0], [15.0]]]
gemm_factors.both: (float[N,6] x) => (float[] y) <float[6,4] w, float[4] b> { y = Gemm<alpha=0.5,
    beta=2.0>(x, w, b) }
gemm_factors.shared_weight: (float[N,4] x) => (float[] y) <float[4,4] w> { c = Gemm<alpha=0.25,
    transB=1>(x, w) y = Gemm(c, w) }
bias_add.conv: (float[N,3,6,6] x) => (float[] y) <float[4,3,3,3] w, float[4,1,1] b> { c = Conv(x, w)
    y = Add(c, b) }
bias_add.subtracted: (float[N,3,6,6] x) => (float[] y) <float[4,3,3,3] w, float[4] a, float[1,4,1,1] b> {
    c = Conv(x, w, a) y = Sub(c, b) }
bias_add.gemm: (float[N,6] x) => (float[] y) <float[6,4] w, float[4] b> { c = Gemm<alpha=0.5>(x, w)
    y = Add(b, c) }
factor.conv: (float[N,3,6,6] x) => (float[] y) <float[4,3,3,3] w, float[4] a, float[1,4,1,1] b> {
    c = Conv(x, w, a) y = Mul(b, c) }
factor.divided: (float[N,3,6,6] x) => (float[] y) <float[4,3,3,3] w, float b> { c = Conv(x, w) y = Div(c, b)
    }
    where b = 3.0
factor.conv_transpose: (float[N,4,6,6] x) => (float[] y) <float[4,3,3,3] w, float[6,1,1] b> {
    c = ConvTranspose<group=2>(x, w) y = Mul(c, b) }
factor.gemm_transposed: (float[N,6] x) => (float[] y) <float[4,6] w, float[4] a, float[4] b> {
    c = Gemm<alpha=0.5, beta=2.0, transB=1>(x, w, a) y = Mul(c, b) }
cast.wider_and_back: (float[N,4] x) => (float[] y) { a = Cast<to=11>(x) b = Cast<to=1>(a) y = Relu(b) }
gelu.erf: (float[N,4] x) => (float[] y) <float r, float one, float half> { d = Div(x, r) e = Erf(d)
    a = Add(e, one) m = Mul(x, a) y = Mul(m, half) }
    where r = 1.4142135; one = 1.0; half = 0.5
gelu.erf_halved_first: (float[N,4] x) => (float[] y) <float r, float one, float half> { h = Mul(half, x)
    d = Div(x, r) e = Erf(d) a = Add(one, e) y = Mul(h, a) }
    where r = 1.4142135; one = 1.0; half = 0.5
gelu.tanh: (float[N,4] x) => (float[] y) <float p, float k, float r, float one, float half> { q = Pow(x, p)
    c = Mul(q, k) z = Add(x, c) u = Mul(z, r) e = Tanh(u) a = Add(e, one) h = Mul(x, half) y = Mul(h, a) }
    where p = 3.0; k = 0.044715; r = 0.7978845608; one = 1.0; half = 0.5
gelu.tanh_factored: (float[N,4] x) => (float[] y) <float k, float r, float one, float half> { q = Mul(x, x)
    c = Mul(q, k) z = Add(c, one) rx = Mul(x, r) u = Mul(rx, z) e = Tanh(u) a = Add(e, one) b = Mul(x, a)
    y = Mul(half, b) }
    where p = 3.0; k = 0.044715; r = 0.7978845608; one = 1.0; half = 0.5
hard_swish.multiplied_first: (float[N,4] x) => (float[] y) <float three, float low, float high, float six> {
    a = Add(x, three) b = Clip(a, low, high) c = Mul(x, b) y = Div(c, six) }
    where three = 3.0; low = 0.0; high = 6.0; six = 6.0
hard_swish.divided_first: (float[N,4] x) => (float[] y) <float three, float low, float high, float six> {
    a = Add(x, three) b = Clip(a, low, high) c = Div(b, six) y = Mul(c, x) }
    where three = 3.0; low = 0.0; high = 6.0; six = 6.0; opset 14
hard_swish.hard_sigmoid: (float[N,4] x) => (float[] y) { a = HardSigmoid<alpha=0.16666667, beta=0.5>(x)
    y = Mul(x, a) }
hard_sigmoid.conv: (float[N,3,6,6] x) => (float[] y) <float[4,3,3,3] w, float[4] b> { c = Conv(x, w, b)
    y = HardSigmoid<alpha=0.16666667>(c) }
hard_sigmoid.gemm_without_bias: (float[N,6] x) => (float[] y) <float[6,4] w> { c = Gemm(x, w)
    y = HardSigmoid(c) }
silu.opset_24: (float[N,4] x) => (float[] y) { a = Sigmoid(x) y = Mul(a, x) }
    where opset 24
layer_norm.with_scale_and_bias: (float[N,3,4] x) => (float[] y) <float two, float e, float[4] g, float[4] b>
    { a = Constant<value = int64[1] {-1}>() m = ReduceMean(x, a) d = Sub(x, m) q = Pow(d, two)
    v = ReduceMean(q, a) f = Add(v, e) s = Sqrt(f) n = Div(d, s) h = Mul(n, g) y = Add(b, h) }
    where two = 2.0; e = 1e-05
layer_norm.bare: (float[N,3,4] x) => (float[] y) <float e> { a = Constant<value = int64[1] {-1}>()
    m = ReduceMean(x, a) d = Sub(x, m) q = Mul(d, d) v = ReduceMean(q, a) f = Add(e, v) s = Sqrt(f)
    r = Reciprocal(s) y = Mul(r, d) }
    where two = 2.0; e = 1e-05
layer_norm.two_axes: (float[N,3,4] x) => (float[] y) <float two, float e, float[3,4] g> {
    m = ReduceMean<axes=[1, 2]>(x) d = Sub(x, m) d2 = Sub(x, m) q = Pow(d2, two) v = ReduceMean<axes=[1,
    2]>(q) f = Add(v, e) s = Sqrt(f) n = Div(d, s) y = Mul(n, g) }
    where two = 2.0; e = 1e-05; opset 17
""")
# Products, poolings and quotients, named axes, and branches of a constant condition.
REWRITTEN |= read_cases("""
einsum.weight: (float[N,3,4] x) => (float[] y) <float[4,6] w> { y = Einsum<equation="nsi, io -> nso">(x, w)
    }
einsum.weight_first: (float[N,3,4] x) => (float[] y) <float[6,4] w> {
    y = Einsum<equation="oi,nsi->nos">(w, x) }
einsum.heads_made: (float[N,3,4] x) => (float[] y) <float[4,2,5] w> {
    y = Einsum<equation="nsi,ihd->nhsd">(x, w) }
einsum.heads_joined: (float[N,3,2,5] x) => (float[] y) <float[2,5,4] w> {
    y = Einsum<equation="nshd,hdo->nso">(x, w) }
einsum.scores: (float[N,3,2,5] x, float[N,6,2,5] z) => (float[] y) {
    y = Einsum<equation="nqhd,nkhd->nhqk">(x, z) }
einsum.mixed: (float[N,2,3,6] x, float[N,6,2,5] z) => (float[] y) {
    y = Einsum<equation="nhqk,nkhd->nqhd">(x, z) }
matmul_left.rows: (float[N,4,5] x) => (float[] y) <float[6,4] w> { y = MatMul(w, x) }
matmul_left.behind_a_transpose: (float[N,2,5,4] x) => (float[] y) <float[6,4] w> {
    t = Transpose<perm=[0,1,3,2]>(x) y = MatMul(w, t) }
matmul_left.behind_another_transpose: (float[4,5,N] x) => (float[] y) <float[6,5] w> { t = Transpose(x)
    y = MatMul(w, t) }
matmul_left.batch_of_matrices: (float[N,3,4,5] x) => (float[] y) <float[3,6,4] w> { y = MatMul(w, x) }
matmul_left.more_axes_than_the_other: (float[4,N] x) => (float[] y) <float[3,6,4] w> { y = MatMul(w, x) }
matmul_matrix.shared: (float[N,3,4] x) => (float[] y) <float[1,4,4] w> { a = MatMul(x, w) y = MatMul(a, w) }
matmul_matrix.read_by_others: (float[N,4,4] x) => (float[] y) <float[1,4,4] w> { a = MatMul(x, w)
    y = Add(a, w) }
matmul_matrix.more_axes_than_the_other: (float[N,4] x) => (float[] y) <float[1,1,4,6] w> { y = MatMul(x, w) }
mean_pool.kept_axes: (float[N,3,5,6] x) => (float[] y) <int64[2] k = {2,3}> { y = ReduceMean(x, k) }
mean_pool.axes_gone: (float[N,3,5,6] x) => (float[] y) { y = ReduceMean<axes=[-1,-2], keepdims=0>(x) }
    where opset 17
mean_pool.volume: (float[N,3,2,5,6] x) => (float[] y) <int64[3] k = {2,3,4}> { y = ReduceMean(x, k) }
matmul_factor.layer_scale: (float[N,3,4] x) => (float[] y) <float[4,6] w, float[6] b, float[6] k> {
    m = MatMul(x, w) a = Add(m, b) y = Mul(k, a) }
matmul_factor.divided: (float[N,3,4] x) => (float[] y) <float[4,6] w, float[1,1] k> { m = MatMul(x, w)
    y = Div(m, k) }
    where k = [[4.0]]
matmul_factor.bias_of_one_element: (float[N,3,4] x) => (float[] y) <float[4,6] w, float b, float[1,6] k> {
    m = MatMul(x, w) a = Add(b, m) y = Mul(a, k) }
    where b = 0.7
reciprocal.rms: (float[N,3,4] x) => (float[] y) <float e, int64[1] k = {-1}> { q = Mul(x, x)
    m = ReduceMean(q, k) f = Add(m, e) s = Sqrt(f) r = Reciprocal(s) y = Mul(x, r) }
    where e = 1e-05
reciprocal.power: (float[N,3,4] x) => (float[] y) <float e, float h, int64[1] k = {-1}> { q = Mul(x, x)
    m = ReduceMean(q, k) f = Add(m, e) r = Pow(f, h) y = Mul(r, x) }
    where e = 1e-05; h = -0.5
named_axes.pad: (float[N,3,5,6] x) => (float[] y) <int64[4] p = {1,0,2,3}, int64[2] a = {-1,2}, float v> {
    y = Pad<mode="constant">(x, p, v, a) }
    where v = 2.0
named_axes.pad_computed: (float[N,3,5,6] x) => (float[] y) <int64[2] a = {3,2}> { s = Shape<start=2>(x)
    p = Concat<axis=0>(s, s) y = Pad(x, p, , a) }
named_axes.resize_by_scales: (float[N,3,5,6] x) => (float[] y) <float[2] k> { y = Resize<mode="linear",
    antialias=1, axes=[2,3]>(x, , k) }
    where k = [0.5, 2.0]
named_axes.resize_to_sizes: (float[N,3,5,6] x) => (float[] y) <int64[2] k = {4,9}> {
    y = Resize<axes=[-1,2]>(x, , , k) }
named_axes.resize_of_a_part: (float[N,3,5,6] x) => (float[] y) <float[4] r, int64[2] k = {4,9}> {
    y = Resize<axes=[2,3], coordinate_transformation_mode="tf_crop_and_resize">(x, r, , k) }
    where r = [0.25, 0.0, 1.0, 0.75]
unit_dilations.average_pool: (float[N,3,5,6] x) => (float[] y) {
    y = AveragePool<kernel_shape=[2,2], dilations=[1,1]>(x) }
known_branch.names_that_clash: (float[N,4] x) => (float[] y) <float[4] w, float[4] u> { t = Constant<value =
    bool {1}>() f = Constant<value = bool {0}>() a = If(t) < then_branch = b1 () => (float[N,4] p) {
    h = Mul(x, w) p = Relu(h) }, else_branch = b2 () => (float[N,4] q) { h = Mul(x, u) q = Abs(h) }>
    y = If(f) < then_branch = b3 () => (float[N,4] p) { h = Sub(a, w) p = Neg(h) }, else_branch = b4 () =>
    (float[N,4] p) { h = Add(a, u) p = Tanh(h) }> }
known_branch.equal_outputs: (float[N,4] x) => (float[] y) { t = Constant<value = bool {1}>() r = Relu(x) a,
    b = If(t) < then_branch = b1 () => (float[N,4] n, float[N,4] m) { n = Neg(r) m = Neg(r) }, else_branch =
    b2 () => (float[N,4] p, float[N,4] q) { p = Abs(r) q = Neg(r) }> y = Mul(a, b) }
known_branch.nested: (float[N,4] x, bool c) => (float[N,4] y) { t = Constant<value = bool {1}>()
    f = Constant<value = bool {0}>() y = If(c) < then_branch = b1 () => (float[N,4] p) { p = If(t) <
    then_branch = b2 () => (float[N,4] s) { h = Abs(x) s = Neg(h) }, else_branch = b3 () => (float[N,4] v) {
    v = Exp(x) }> }, else_branch = b4 () => (float[N,4] q) { q = If(f) < then_branch = b5 () =>
    (float[N,4] v) { v = Exp(x) }, else_branch = b6 () => (float[N,4] s) { h = Relu(x) s = Neg(h) }> }> }
""")
# What is nearly what a pass rewrites.
LEFT_ALONE = read_cases("""
unit_dilations.dilated: (float[N,3,5,6] x) => (float[N,3,3,5] y) {
    y = AveragePool<kernel_shape=[2,2], dilations=[2,1]>(x) }
known_branch.if_of_a_computed_condition: (float[N,4] x, bool c) => (float[N,4] y) { y = If(c) < then_branch
    = t () => (float[N,4] p) { p = Relu(x) }, else_branch = e () => (float[N,4] q) { q = Abs(x) }> }
gemm_factors.gemm_of_two_inputs: (float[N,4] x, float[4,3] w) => (float[] y) { y = Gemm<alpha=0.5>(x, w) }
bias_add.conv_read_by_two: (float[N,3,6,6] x) => (float[] y) <float[4,3,3,3] w, float[4,1,1] b> {
    c = Conv(x, w) a = Add(c, b) y = Mul(a, c) }
bias_add.conv_that_is_an_output: (float[N,3,6,6] x) => (float[] c, float[] y) <float[4,3,3,3] w,
    float[4,1,1] b> { c = Conv(x, w) y = Add(c, b) }
bias_add.operand_over_the_width: (float[N,3,6,6] x) => (float[] y) <float[4,3,3,3] w, float[4] b> {
    c = Conv(x, w) y = Add(c, b) }
factor.divisor: (float[N,3,6,6] x) => (float[] y) <float[4,3,3,3] w, float[4,1,1] b> { c = Conv(x, w)
    y = Div(b, c) }
bias_add.subtracted_from: (float[N,3,6,6] x) => (float[] y) <float[4,3,3,3] w, float[4,1,1] b> {
    c = Conv(x, w) y = Sub(b, c) }
factor.gemm_with_a_bias_a_row: (float[4,6] x) => (float[] y) <float[6,4] w, float[4,1] b, float[4] k> {
    c = Gemm(x, w, b) y = Mul(c, k) }
hard_sigmoid.beside_another_reader: (float[N,6] x) => (float[] y) <float[6,4] w> { c = Gemm(x, w)
    a = HardSigmoid(c) y = Add(a, c) }
hard_sigmoid.of_an_input: (float[N,4] x) => (float[] y) { y = HardSigmoid(x) }
bias_add.infinite_operand: (float[N,3,6,6] x) => (float[] y) <float[4,3,3,3] w, float[4,1,1] b> {
    c = Conv(x, w) y = Add(c, b) }
    where b = [[[0.0]], [[0.0]], [[-Infinity]], [[0.0]]]
batch_norm.of_the_batch: (float[N,3,6,6] x) => (float[] y) <float[4,3,3,3] w, float[4] s, float[4] t,
    float[4] m, float[4] v> { c = Conv(x, w) y, a, b = BatchNormalization<training_mode=1>(c, s, t, m, v) }
    where v = [0.5, 1.0, 2.0, 3.0]; opset 15
cast.to_a_narrower_type: (float[N,4] x) => (float[] y) { a = Cast<to=10>(x) b = Cast<to=1>(a) y = Relu(b) }
silu.quick_gelu: (float[N,4] x) => (float[] y) <float k> { d = Mul(x, k) e = Sigmoid(d) y = Mul(x, e) }
    where k = 1.702; opset 24
silu.before_opset_24: (float[N,4] x) => (float[] y) { a = Sigmoid(x) y = Mul(x, a) }
    where opset 23
gelu.erf_of_something_else: (float[N,4] x) => (float[] y) <float r, float one, float half> { d = Div(x, r)
    e = Erf(d) a = Add(e, one) m = Mul(x, a) y = Mul(m, half) }
    where r = 1.5; one = 1.0; half = 0.5
gelu.whose_erf_is_read: (float[N,4] x) => (float[] y) <float r, float one, float half> { d = Div(x, r)
    e = Erf(d) a = Add(e, one) m = Mul(x, a) h = Mul(m, half) y = Add(h, e) }
    where r = 1.4142135; one = 1.0; half = 0.5
hard_swish.to_another_bound: (float[N,4] x) => (float[] y) <float three, float low, float high, float six> {
    a = Add(x, three) b = Clip(a, low, high) c = Mul(x, b) y = Div(c, six) }
    where three = 3.0; low = 0.0; high = 5.0; six = 6.0
layer_norm.norm_over_the_first_axis: (float[2,3,4] x) => (float[] y) <float two, float e> {
    m = ReduceMean<axes=[1]>(x) d = Sub(x, m) q = Pow(d, two) v = ReduceMean<axes=[1]>(q) f = Add(v, e)
    s = Sqrt(f) y = Div(d, s) }
    where two = 2.0; e = 1e-05; opset 17
layer_norm.norm_with_two_means: (float[2,3,4] x) => (float[] y) <float two, float e> {
    m = ReduceMean<axes=[2]>(x) k = ReduceMean<axes=[1, 2]>(x) d = Sub(x, m) c = Sub(x, k) q = Pow(d, two)
    v = ReduceMean<axes=[2]>(q) f = Add(v, e) s = Sqrt(f) y = Div(c, s) }
    where two = 2.0; e = 1e-05; opset 17
einsum.of_a_diagonal: (float[N,4,4] x, float[N,4] z) => (float[] y) {
    y = Einsum<equation="nii,nj->nij">(x, z) }
einsum.that_sums_one_operand: (float[N,4,5] x) => (float[] y) <float[4,6] w> {
    y = Einsum<equation="nij,io->no">(x, w) }
einsum.of_vectors: (float[N,4] x, float[N,5] z) => (float[] y) { y = Einsum<equation="ni,nj->nij">(x, z) }
einsum.of_three: (float[N,4] x) => (float[] y) <float[4,5] w, float[5,3] v> {
    y = Einsum<equation="ni,ij,jk->nk">(x, w, v) }
einsum.that_stretches_a_size_of_one: (float[N,1] x) => (float[] y) <float[4,6] w> {
    y = Einsum<equation="ni,io->no">(x, w) }
einsum.of_two_groups_without_a_constant: (float[3,2,4] x, float[4,2,5] z) => (float[] y) {
    y = Einsum<equation="abc,cde->abde">(x, z) }
einsum.without_a_result: (float[N,4] x) => (float[] y) <float[4,6] w> { y = Einsum<equation="ni,io">(x, w) }
matmul_left.matmul_of_a_vector_on_the_left: (float[4,5] x) => (float[] y) <float[4] w> { y = MatMul(w, x) }
matmul_left.matmul_of_a_vector_on_the_right: (float[4] x) => (float[] y) <float[5,4] w> { y = MatMul(w, x) }
matmul_matrix.batch_of_matrices: (float[N,3,5,4] x) => (float[] y) <float[1,3,4,6] w> { y = MatMul(x, w) }
named_axes.pad_of_all_axes: (float[N,4] x) => (float[] y) <int64[4] p = {0,1,0,2}> { y = Pad(x, p) }
named_axes.resize_that_keeps_an_aspect_ratio: (float[N,3,5,6] x) => (float[] y) <int64[2] k = {4,9}> {
    y = Resize<axes=[2,3], keep_aspect_ratio_policy="not_larger">(x, , , k) }
mean_pool.mean_of_a_sequence: (float[N,3,5] x) => (float[] y) <int64[1] k = {2}> { y = ReduceMean(x, k) }
mean_pool.mean_of_one_of_two_axes: (float[N,3,5,6] x) => (float[] y) <int64[1] k = {3}> {
    y = ReduceMean(x, k) }
mean_pool.mean_of_squares: (float[N,3,5,6] x) => (float[] y) <int64[2] k = {2,3}> { q = Mul(x, x)
    y = ReduceMean(q, k) }
matmul_factor.factor_a_row_of_a_product: (float[N,3,4] x) => (float[] y) <float[4,6] w, float[3,1] k> {
    m = MatMul(x, w) y = Mul(m, k) }
matmul_factor.factor_that_adds_an_axis: (float[3,4] x) => (float[] y) <float[4,6] w, float[1,1,6] k> {
    m = MatMul(x, w) y = Mul(m, k) }
matmul_factor.product_that_is_read_beside_its_factor: (float[N,4] x) => (float[] y) <float[4,4] w, float k>
    { m = MatMul(x, w) a = Mul(m, k) y = Add(m, a) }
    where k = 0.3
matmul_factor.factor_of_two_that_are_computed: (float[N,3,4] x, float[N,4,3] z) => (float[] y) <float k> {
    m = MatMul(x, z) y = Mul(m, k) }
    where k = 0.3
reciprocal.of_a_constant_product: (float[N,4] x) => (float[] y) <float k> { a = Abs(x) b = Add(a, k)
    r = Reciprocal(b) y = Mul(k, r) }
    where k = 1.5
reciprocal.square_of_a_reciprocal: (float[N,4] x) => (float[] y) <float k> { a = Abs(x) b = Add(a, k)
    r = Reciprocal(b) y = Mul(r, r) }
    where k = 1.5
reciprocal.power_of_a_third: (float[N,4] x) => (float[] y) <float k, float p> { a = Abs(x) b = Add(a, k)
    r = Pow(b, p) y = Mul(x, r) }
    where k = 1.5; p = -0.333
""")
