"""Small graphs that are nearly what a pass rewrites, and that it must leave alone."""

import numpy as np

from tests.unit.models.preparing.passes.cases import (
    BOUNDS,
    CLIP_FORM,
    CONV,
    ERF,
    ERF_FORM,
    FOUR,
    HALVES,
    LN,
    NORM,
    ROW,
    SWISH,
    Case,
)

LEFT_ALONE = {
    "known_branch.if_of_a_computed_condition": Case(
        graph="""(float[N,4] x, bool c) => (float[N,4] y) { y = If(c) <
            then_branch = t () => (float[N,4] p) { p = Relu(x) },
            else_branch = e () => (float[N,4] q) { q = Abs(x) }> }"""
    ),
    "gemm_factors.gemm_of_two_inputs": Case(
        graph="(float[N,4] x, float[4,3] w) => (float[] y) { y = Gemm<alpha=0.5>(x, w) }"
    ),
    "bias_add.conv_read_by_two": Case(
        graph=f"{CONV}float[4,1,1] b> {{ c = Conv(x, w)\n a = Add(c, b)\n y = Mul(a, c) }}"
    ),
    "bias_add.conv_that_is_an_output": Case(
        graph="(float[N,3,6,6] x) => (float[] c, float[] y) <float[4,3,3,3] w, float[4,1,1] b> "
        "{ c = Conv(x, w)\n y = Add(c, b) }"
    ),
    "bias_add.operand_over_the_width": Case(graph=f"{CONV}float[4] b> {{ c = Conv(x, w)\n y = Add(c, b) }}"),
    "factor.divisor": Case(graph=f"{CONV}float[4,1,1] b> {{ c = Conv(x, w)\n y = Div(b, c) }}"),
    "bias_add.subtracted_from": Case(graph=f"{CONV}float[4,1,1] b> {{ c = Conv(x, w)\n y = Sub(b, c) }}"),
    "factor.gemm_with_a_bias_a_row": Case(
        graph="""(float[4,6] x) => (float[] y) <float[6,4] w, float[4,1] b, float[4] k> {
            c = Gemm(x, w, b)
            y = Mul(c, k) }"""
    ),
    "hard_sigmoid.beside_another_reader": Case(
        graph="(float[N,6] x) => (float[] y) <float[6,4] w> "
        "{ c = Gemm(x, w)\n a = HardSigmoid(c)\n y = Add(a, c) }"
    ),
    "hard_sigmoid.of_an_input": Case(graph=f"{ROW} {{ y = HardSigmoid(x) }}"),
    "bias_add.infinite_operand": Case(
        graph=f"{CONV}float[4,1,1] b> {{ c = Conv(x, w)\n y = Add(c, b) }}",
        constants={"b": [[[0.0]], [[0.0]], [[-np.inf]], [[0.0]]]},
    ),
    "batch_norm.of_the_batch": Case(
        graph=f"{CONV}{NORM} c = Conv(x, w)\n"
        f" y, a, b = BatchNormalization<training_mode=1>(c, s, t, m, v) }}",
        constants=FOUR,
        opset=15,
    ),
    "cast.to_a_narrower_type": Case(
        graph=f"{ROW} {{ a = Cast<to=10>(x)\n b = Cast<to=1>(a)\n y = Relu(b) }}"
    ),
    "silu.quick_gelu": Case(
        graph=f"{ROW} <float k> {{ d = Mul(x, k)\n e = Sigmoid(d)\n y = Mul(x, e) }}",
        constants={"k": 1.702},
        opset=24,
    ),
    "silu.before_opset_24": Case(graph=f"{ROW} {{ a = Sigmoid(x)\n y = Mul(x, a) }}", opset=23),
    "gelu.erf_of_something_else": Case(graph=f"{ROW} {HALVES} {{ {ERF_FORM} }}", constants=ERF | {"r": 1.5}),
    "gelu.whose_erf_is_read": Case(
        graph=f"{ROW} {HALVES} {{ d = Div(x, r)\n e = Erf(d)\n a = Add(e, one)\n m = Mul(x, a)\n"
        f" h = Mul(m, half)\n"
        " y = Add(h, e) }",
        constants=ERF,
    ),
    "hard_swish.to_another_bound": Case(
        graph=f"{ROW} {BOUNDS} {{ {CLIP_FORM}\n c = Mul(x, b)\n y = Div(c, six) }}",
        constants=SWISH | {"high": 5.0},
    ),
    "layer_norm.norm_over_the_first_axis": Case(
        graph="""(float[2,3,4] x) => (float[] y) <float two, float e> {
            m = ReduceMean<axes=[1]>(x)
            d = Sub(x, m)
            q = Pow(d, two)
            v = ReduceMean<axes=[1]>(q)
            f = Add(v, e)
            s = Sqrt(f)
            y = Div(d, s) }""",
        constants=LN,
        opset=17,
    ),
    "layer_norm.norm_with_two_means": Case(
        graph="""(float[2,3,4] x) => (float[] y) <float two, float e> {
            m = ReduceMean<axes=[2]>(x)
            k = ReduceMean<axes=[1, 2]>(x)
            d = Sub(x, m)
            c = Sub(x, k)
            q = Pow(d, two)
            v = ReduceMean<axes=[2]>(q)
            f = Add(v, e)
            s = Sqrt(f)
            y = Div(c, s) }""",
        constants=LN,
        opset=17,
    ),
    "einsum.of_a_diagonal": Case(
        graph='(float[N,4,4] x, float[N,4] z) => (float[] y) { y = Einsum<equation="nii,nj->nij">(x, z) }'
    ),
    "einsum.that_sums_one_operand": Case(
        graph='(float[N,4,5] x) => (float[] y) <float[4,6] w> { y = Einsum<equation="nij,io->no">(x, w) }'
    ),
    "einsum.of_vectors": Case(
        graph='(float[N,4] x, float[N,5] z) => (float[] y) { y = Einsum<equation="ni,nj->nij">(x, z) }'
    ),
    "einsum.of_three": Case(
        graph="""(float[N,4] x) => (float[] y) <float[4,5] w, float[5,3] v> {
            y = Einsum<equation="ni,ij,jk->nk">(x, w, v) }"""
    ),
    "einsum.that_stretches_a_size_of_one": Case(
        graph='(float[N,1] x) => (float[] y) <float[4,6] w> { y = Einsum<equation="ni,io->no">(x, w) }'
    ),
    "einsum.of_two_groups_without_a_constant": Case(
        graph='(float[3,2,4] x, float[4,2,5] z) => (float[] y) { y = Einsum<equation="abc,cde->abde">(x, z) }'
    ),
    "einsum.without_a_result": Case(
        graph='(float[N,4] x) => (float[] y) <float[4,6] w> { y = Einsum<equation="ni,io">(x, w) }'
    ),
    "matmul_left.matmul_of_a_vector_on_the_left": Case(
        graph="(float[4,5] x) => (float[] y) <float[4] w> { y = MatMul(w, x) }"
    ),
    "matmul_left.matmul_of_a_vector_on_the_right": Case(
        graph="(float[4] x) => (float[] y) <float[5,4] w> { y = MatMul(w, x) }"
    ),
    "named_axes.pad_of_all_axes": Case(
        graph="(float[N,4] x) => (float[] y) <int64[4] p = {0,1,0,2}> { y = Pad(x, p) }"
    ),
    "named_axes.resize_that_keeps_an_aspect_ratio": Case(
        graph="""(float[N,3,5,6] x) => (float[] y) <int64[2] k = {4,9}> {
            y = Resize<axes=[2,3], keep_aspect_ratio_policy="not_larger">(x, , , k) }"""
    ),
    "mean_pool.mean_of_a_sequence": Case(
        graph="(float[N,3,5] x) => (float[] y) <int64[1] k = {2}> { y = ReduceMean(x, k) }"
    ),
    "mean_pool.mean_of_one_of_two_axes": Case(
        graph="(float[N,3,5,6] x) => (float[] y) <int64[1] k = {3}> { y = ReduceMean(x, k) }"
    ),
    "mean_pool.mean_of_squares": Case(
        graph="(float[N,3,5,6] x) => (float[] y) <int64[2] k = {2,3}> { q = Mul(x, x)\n"
        " y = ReduceMean(q, k) }"
    ),
    "matmul_factor.factor_a_row_of_a_product": Case(
        graph="(float[N,3,4] x) => (float[] y) <float[4,6] w, float[3,1] k> { m = MatMul(x, w)\n"
        " y = Mul(m, k) }"
    ),
    "matmul_factor.factor_that_adds_an_axis": Case(
        graph="(float[3,4] x) => (float[] y) <float[4,6] w, float[1,1,6] k> { m = MatMul(x, w)\n"
        " y = Mul(m, k) }"
    ),
    "matmul_factor.product_that_is_read_beside_its_factor": Case(
        graph="(float[N,4] x) => (float[] y) <float[4,4] w, float k> "
        "{ m = MatMul(x, w)\n a = Mul(m, k)\n y = Add(m, a) }",
        constants={"k": 0.3},
    ),
    "matmul_factor.factor_of_two_that_are_computed": Case(
        graph="(float[N,3,4] x, float[N,4,3] z) => (float[] y) <float k> { m = MatMul(x, z)\n"
        " y = Mul(m, k) }",
        constants={"k": 0.3},
    ),
    "reciprocal.of_a_constant_product": Case(
        graph="(float[N,4] x) => (float[] y) <float k> { a = Abs(x)\n b = Add(a, k)\n"
        " r = Reciprocal(b)\n y = Mul(k, r) }",
        constants={"k": 1.5},
    ),
    "reciprocal.square_of_a_reciprocal": Case(
        graph="(float[N,4] x) => (float[] y) <float k> { a = Abs(x)\n b = Add(a, k)\n"
        " r = Reciprocal(b)\n y = Mul(r, r) }",
        constants={"k": 1.5},
    ),
    "reciprocal.power_of_a_third": Case(
        graph="(float[N,4] x) => (float[] y) <float k, float p> { a = Abs(x)\n b = Add(a, k)\n"
        " r = Pow(b, p)\n"
        " y = Mul(x, r) }",
        constants={"k": 1.5, "p": -0.333},
    ),
}
