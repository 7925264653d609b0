"""Which kernels ONNX Runtime runs a model with: of each operator, and how many of each kind."""

import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx
import onnx_ir as ir

from ptq_cli.models.files.stored import StoredModel, serialize
from ptq_cli.models.operators.integer_operators import INTEGER_OPERATORS, is_integer_operator
from ptq_cli.models.operators.pair_operators import QUANTIZE, QUANTIZING
from ptq_cli.plan.target.rules import ONNXRUNTIME, RUNTIME_TITLES
from ptq_cli.runtime.engines.engine import Kernel, KernelCounts, Placement
from ptq_cli.runtime.sessions.session import Session

BLOCK_KERNELS = ("MatMulNBits", "GatherBlockQuantized")
"""They read weights in blocks, and give floats."""
LEAVE_INTEGERS = (
    *INTEGER_OPERATORS,
    *QUANTIZING,
    *BLOCK_KERNELS,
    "Cast",
    "If",
    "Loop",
    "Scan",
    "Shape",
    "Size",
)
"""They read integers, and what they give is none of a quantized tensor's."""
QGEMM_SCALE = 7
"""Its input that holds the scale of the result."""
AROUND = (*QUANTIZING, "Transpose", "Cast", "ReorderInput", "ReorderOutput")
"""What ONNX Runtime puts beside an operator, under a name that is made of the operator's."""
INTEGER_TYPES = (
    onnx.TensorProto.UINT8,
    onnx.TensorProto.INT8,
    onnx.TensorProto.UINT16,
    onnx.TensorProto.INT16,
    onnx.TensorProto.UINT4,
    onnx.TensorProto.INT4,
    onnx.TensorProto.UINT2,
    onnx.TensorProto.INT2,
)
INTEGER_KERNELS = {
    "Conv": ("QLinearConv", "ConvInteger", "QLinearConv_NHWC"),
    "Gemm": ("QGemm",),
    "MatMul": ("QLinearMatMul", "MatMulIntegerToFloat", "MatMulInteger", "DynamicQuantizeMatMul"),
    "Add": ("QLinearAdd",),
    "Mul": ("QLinearMul",),
    "Concat": ("QLinearConcat",),
    "LSTM": ("DynamicQuantizeLSTM",),
    "MatMulNBits": ("MatMulNBits",),
}
FLOAT_KERNELS = {
    "Conv": ("Conv", "FusedConv"),
    "Gemm": ("Gemm", "FusedGemm"),
    "MatMul": ("MatMul", "FusedMatMul"),
    "LSTM": ("LSTM",),
}
ORIGIN = re.compile(r"node(\d+)\.")


def count_kernels(model: bytes | Path | StoredModel) -> KernelCounts:
    """Let ONNX Runtime optimize a model, and count what became integer.

    Raises:
        RuntimeFailedError: ONNX Runtime cannot load the model.
    """
    counts = Counter(node.op_type for node, _ in _placements(optimized_by_runtime(model).graph))
    return KernelCounts(
        RUNTIME_TITLES[ONNXRUNTIME],
        {name: sum(counts[kernel] for kernel in kernels) for name, kernels in INTEGER_KERNELS.items()},
        {name: sum(counts[kernel] for kernel in kernels) for name, kernels in FLOAT_KERNELS.items()},
    )


def find_kernels(model: ir.Model) -> Mapping[str, Kernel]:
    """Let ONNX Runtime optimize a model, and return the kernel of each node, those of nested graphs too.

    Every node gets a name that ONNX Runtime keeps, or makes others of; so an operator is found again where
    the file gives no names, or the same one twice.

    Args:
        model: is left as it is; the names of its nodes are unique.

    Raises:
        RuntimeFailedError: ONNX Runtime cannot load the model.
    """
    marked = model.clone()
    nodes = zip(marked.graph.all_nodes(), model.graph.all_nodes(), strict=True)
    for index, (node, original) in enumerate(nodes):
        if node.op_type != original.op_type:
            raise RuntimeError("a cloned graph has another order")
        node.name = f"node{index}."
    optimized = optimized_by_runtime(serialize(marked))
    found: dict[int, Kernel] = {}
    for kernel, placement in _placements(optimized.graph):
        origin = ORIGIN.match(kernel.name)
        if origin is None:
            continue
        index = int(origin.group(1))
        if index in found and kernel.op_type in AROUND:
            continue
        found[index] = Kernel(placement, kernel.op_type)
    gone = Kernel("gone")
    return {node.name or "": found.get(index, gone) for index, node in enumerate(model.graph.all_nodes())}


def optimized_by_runtime(model: bytes | Path | StoredModel) -> onnx.ModelProto:
    """Return what ONNX Runtime makes of a model before it runs it; without constants that lie outside.

    Raises:
        RuntimeFailedError: ONNX Runtime cannot load the model.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimized.onnx"
        Session(model, threads=1, save_optimized=path, apart=True)
        return onnx.load(path, load_external_data=False)


def _placements(
    graph: onnx.GraphProto, around: frozenset[str] = frozenset()
) -> Iterator[tuple[onnx.NodeProto, Placement]]:
    """Yield each kernel with where it computes; types are followed, since the file does not hold them all.

    Args:
        graph: as ONNX Runtime optimized it; those nested in it are looked through, too.
        around: names of integers of the graphs that it is nested in.
    """
    integers = set(around) | {
        tensor.name for tensor in graph.initializer if tensor.data_type in INTEGER_TYPES
    }
    integers |= {info.name for info in graph.input if info.type.tensor_type.elem_type in INTEGER_TYPES}
    for kernel in graph.node:
        moves = bool(kernel.input) and kernel.input[0] in integers and kernel.op_type not in LEAVE_INTEGERS
        is_linear = kernel.op_type.startswith("QLinear")
        # A QGemm without the scale of its result gives floats.
        requantizes = kernel.op_type == "QGemm" and len(kernel.input) > QGEMM_SCALE
        if moves or is_linear or requantizes or kernel.op_type == QUANTIZE:
            # The second result of a MaxPool is of indices.
            integers.update(kernel.output if kernel.op_type == "Split" else kernel.output[:1])
        else:
            integers.difference_update(kernel.output)  # Around it the name may be that of integers.
        yield kernel, "integer" if moves or is_integer_operator(kernel.op_type) else "float"
        for attribute in kernel.attribute:
            for nested in (attribute.g, *attribute.graphs):
                yield from _placements(nested, frozenset(integers))
