"""The passes, in the order in which they run."""

from ptq_cli.models.preparing.passes.activations import GELU, HARD_SWISH, SILU
from ptq_cli.models.preparing.passes.known_branch import KNOWN_BRANCH
from ptq_cli.models.preparing.passes.matmul_forms import EINSUM, MATMUL_LEFT, MATMUL_MATRIX
from ptq_cli.models.preparing.passes.means import LAYER_NORM, MEAN_POOL, RECIPROCAL
from ptq_cli.models.preparing.passes.merged import (
    BATCH_NORM,
    BIAS_ADD,
    FACTOR,
    GEMM_FACTORS,
    HARD_SIGMOID,
    MATMUL_FACTOR,
)
from ptq_cli.models.preparing.passes.portable_forms import CASTS, NAMED_AXES, UNIT_DILATIONS
from ptq_cli.models.preparing.rewriting import RewritePass

FOLDING = (GEMM_FACTORS, BATCH_NORM, BIAS_ADD, FACTOR, MATMUL_FACTOR)
FUSING = (LAYER_NORM, GELU, HARD_SWISH, SILU)
PRODUCTS = (EINSUM, MATMUL_LEFT, MATMUL_MATRIX)
REST: tuple[RewritePass, ...] = (
    CASTS,
    NAMED_AXES,
    UNIT_DILATIONS,
    *PRODUCTS,
    MEAN_POOL,
    *FOLDING,
    *FUSING,
    HARD_SIGMOID,
    RECIPROCAL,
)
PASSES = (KNOWN_BRANCH, *REST)  # a branch that is taken is simplified before the others run
