"""The passes, in the order in which they run."""

from ptq_cli.models.preparing.passes.einsum import EINSUM
from ptq_cli.models.preparing.passes.known import CASTS, KNOWN_BRANCH, NAMED_AXES, UNIT_DILATIONS
from ptq_cli.models.preparing.passes.layer_norm import LAYER_NORM
from ptq_cli.models.preparing.passes.merged import (
    BATCH_NORM,
    BIAS_ADD,
    FACTOR,
    GEMM_FACTORS,
    HARD_SIGMOID,
    MATMUL_FACTOR,
)
from ptq_cli.models.preparing.passes.recognized import (
    GELU,
    HARD_SWISH,
    MATMUL_LEFT,
    MATMUL_MATRIX,
    MEAN_POOL,
    RECIPROCAL,
    SILU,
)
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
PASSES = (KNOWN_BRANCH, *REST)
"""A branch that is taken is simplified before the rest of them runs."""
