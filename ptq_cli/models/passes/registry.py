"""The passes, in the order in which they run."""

from ptq_cli.models.passes.affine import BIAS_ADD, FACTOR
from ptq_cli.models.passes.batch_norm import BATCH_NORM
from ptq_cli.models.passes.casts import CASTS
from ptq_cli.models.passes.einsum import EINSUM
from ptq_cli.models.passes.gelu import GELU
from ptq_cli.models.passes.gemm import GEMM_FACTORS
from ptq_cli.models.passes.hard_swish import HARD_SWISH
from ptq_cli.models.passes.layer_norm import LAYER_NORM
from ptq_cli.models.passes.matmul_factor import MATMUL_FACTOR
from ptq_cli.models.passes.matmul_left import MATMUL_LEFT
from ptq_cli.models.passes.mean_pool import MEAN_POOL
from ptq_cli.models.passes.named_axes import NAMED_AXES
from ptq_cli.models.passes.reciprocal import RECIPROCAL
from ptq_cli.models.passes.rule import Pass
from ptq_cli.models.passes.silu import SILU

FOLDING = (GEMM_FACTORS, BATCH_NORM, BIAS_ADD, FACTOR, MATMUL_FACTOR)
FUSING = (LAYER_NORM, GELU, HARD_SWISH, SILU)
PRODUCTS = (EINSUM, MATMUL_LEFT)
PASSES: tuple[Pass, ...] = (CASTS, NAMED_AXES, *PRODUCTS, MEAN_POOL, *FOLDING, *FUSING, RECIPROCAL)
