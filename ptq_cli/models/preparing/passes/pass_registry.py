"""The passes, in the order in which they run."""

from ptq_cli.models.preparing.passes.casts import CASTS
from ptq_cli.models.preparing.passes.known_branch import KNOWN_BRANCH
from ptq_cli.models.preparing.passes.merged.affine_map import BIAS_ADD, FACTOR
from ptq_cli.models.preparing.passes.merged.batch_norm import BATCH_NORM
from ptq_cli.models.preparing.passes.merged.gemm import GEMM_FACTORS
from ptq_cli.models.preparing.passes.merged.hard_sigmoid import HARD_SIGMOID
from ptq_cli.models.preparing.passes.merged.matmul_factor import MATMUL_FACTOR
from ptq_cli.models.preparing.passes.named_axes import NAMED_AXES
from ptq_cli.models.preparing.passes.recognized.einsum import EINSUM
from ptq_cli.models.preparing.passes.recognized.gelu import GELU
from ptq_cli.models.preparing.passes.recognized.hard_swish import HARD_SWISH
from ptq_cli.models.preparing.passes.recognized.layer_norm import LAYER_NORM
from ptq_cli.models.preparing.passes.recognized.matmul_left import MATMUL_LEFT
from ptq_cli.models.preparing.passes.recognized.mean_pool import MEAN_POOL
from ptq_cli.models.preparing.passes.recognized.reciprocal import RECIPROCAL
from ptq_cli.models.preparing.passes.recognized.silu import SILU
from ptq_cli.models.preparing.rewriting.rewrite_pass import RewritePass

FOLDING = (GEMM_FACTORS, BATCH_NORM, BIAS_ADD, FACTOR, MATMUL_FACTOR)
FUSING = (LAYER_NORM, GELU, HARD_SWISH, SILU)
PRODUCTS = (EINSUM, MATMUL_LEFT)
REST: tuple[RewritePass, ...] = (
    CASTS,
    NAMED_AXES,
    *PRODUCTS,
    MEAN_POOL,
    *FOLDING,
    *FUSING,
    HARD_SIGMOID,
    RECIPROCAL,
)
PASSES = (KNOWN_BRANCH, *REST)
"""A branch that is taken is simplified before the rest of them runs."""
