"""Proof: what ONNX Runtime makes of a quantized model."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from ptq_cli.models.stored import StoredModel
from ptq_cli.qdq.proof.kernels import optimized_by_runtime

INTEGER_KERNELS = {
    "Conv": ("QLinearConv", "ConvInteger", "QLinearConv_NHWC"),
    "Gemm": ("QGemm",),
    "MatMul": ("QLinearMatMul", "MatMulIntegerToFloat", "MatMulInteger"),
    "Add": ("QLinearAdd",),
    "Mul": ("QLinearMul",),
    "Concat": ("QLinearConcat",),
}
FLOAT_KERNELS = {
    "Conv": ("Conv", "FusedConv"),
    "Gemm": ("Gemm", "FusedGemm"),
    "MatMul": ("MatMul", "FusedMatMul"),
}


@dataclass(frozen=True)
class KernelCounts:
    """How many kernels of each compute operator ONNX Runtime runs as integers and as floats.

    Attributes:
        integer, floating: by ``Conv``, ``Gemm`` and ``MatMul``. A MatMul with a bias may run as a Gemm.
    """

    integer: dict[str, int]
    floating: dict[str, int]


def count_kernels(model: bytes | Path | StoredModel) -> KernelCounts:
    """Let ONNX Runtime optimize a model, and count what became integer.

    Raises:
        RuntimeFailedError: ONNX Runtime cannot load the model.
    """
    counts = Counter(node.op_type for node in optimized_by_runtime(model).graph.node)
    return KernelCounts(
        {name: sum(counts[kernel] for kernel in kernels) for name, kernels in INTEGER_KERNELS.items()},
        {name: sum(counts[kernel] for kernel in kernels) for name, kernels in FLOAT_KERNELS.items()},
    )
