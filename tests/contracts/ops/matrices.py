"""Gemm, MatMul and Einsum."""

from tests.contracts.ops.case import COST, OpCase, graph

ROW = "float[N,8] x"
STACK = "float[N,5,8] x"

MATRICES = {
    "gemm_alpha_beta": OpCase(
        graph=graph(ROW, "float[8,6] w, float[6] b", "y = Gemm<alpha=0.5, beta=2.0>(x, w, b)"),
        integer="y",
        kernels={"QGemm": 1},
    ),
    "gemm_two_inputs": OpCase(
        graph=graph("float[4,8] x", "", "t = Transpose(x)", "y = Gemm(x, t)"),
        refused="its weight 't' is computed at run time",
    ),
    "gemm_weight_left": OpCase(
        graph=graph("float[8,6] x", "float[5,8] w", "y = Gemm(w, x)"),
        refused="reads the constant 'w': quantizing it would lose accuracy and gain nothing",
    ),
    "gemm_computed_bias": OpCase(
        graph=graph(f"{ROW}, float[N,6] z", "float[8,6] w", "y = Gemm(x, w, z)"),
        refused="its bias 'z' is computed at run time",
    ),
    "matmul_constant_left": OpCase(
        graph=graph("float[N,8,5] x", "float[6,8] w", "y = MatMul(w, x)"),
        integer="y/Transpose y/MatMul",
        floats={"y": COST},
        kernels={"MatMulIntegerToFloat": 1},
    ),
    "matmul_of_itself": OpCase(
        graph=graph("float[N,6,6] x", "", "y = MatMul(x, x)"),
        integer="y",
        kernels={"MatMulIntegerToFloat": 1},
    ),
    "matmul_broadcast_batch": OpCase(
        graph=graph("float[N,3,5,8] x, float[N,1,8,6] z", "", "y = MatMul(x, z)"),
        integer="y",
        kernels={"MatMulIntegerToFloat": 1},
    ),
    "matmul_weight_transposed": OpCase(
        graph=graph(STACK, "float[6,8] w", "t = Transpose<perm=[1,0]>(w)", "y = MatMul(x, t)"),
        integer="y",
        kernels={"MatMulIntegerToFloat": 1},
    ),
    "einsum_with_weight": OpCase(
        graph=graph(
            STACK, "float[8,6] w, float[6,4] v", 'e = Einsum<equation="nsi,io->nso">(x, w) y = MatMul(e, v)'
        ),
        integer="e y",
        kernels={"MatMulIntegerToFloat": 1, "QLinearMatMul": 1},
    ),
    "einsum_of_two": OpCase(
        graph=graph(
            "float[N,2,5,4] x, float[N,2,6,4] z",
            "float[6,4] v",
            'e = Einsum<equation="nhqd,nhkd->nhqk">(x, z) y = MatMul(e, v)',
        ),
        integer="e/Transpose e y",
        kernels={"MatMulIntegerToFloat": 1, "QLinearMatMul": 1},
        least_db=20,
    ),
    "einsum_alone": OpCase(
        graph=graph(STACK, "float[8,6] w", 'y = Einsum<equation="nsi,io->nso">(x, w)'),
        integer="y",
        kernels={"MatMulIntegerToFloat": 1},
    ),
}
