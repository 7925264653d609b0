"""Runtimes by name, which of them runs a target, and ONNX Runtime as one of them."""

import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir
import onnxruntime

from ptq_cli.core.tensors import Array
from ptq_cli.models.files.stored import StoredModel, serialize
from ptq_cli.models.graph_reading import every_node
from ptq_cli.models.pair_operators import INTEGER_OPERATORS, QUANTIZE, QUANTIZING, is_integer_operator
from ptq_cli.plan.target.rules import ONNXRUNTIME, OPENVINO, QNN, RUNTIME_TITLES, Target
from ptq_cli.runtime.engine import Engine, Kernel, KernelCounts, KernelPlacement, Model
from ptq_cli.runtime.openvino import OPEN_VINO
from ptq_cli.runtime.qnn import QNN_HTP, is_installed
from ptq_cli.runtime.session import DEFAULT_KERNELS, EXACT, Kernels, Session, Written

BLOCK_KERNELS = ("MatMulNBits", "GatherBlockQuantized")  # read weights in blocks, give floats
# They read integers, and their results are not the integers of a quantized tensor
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
QGEMM_SCALE = 7  # its input for the scale of the result
# What ONNX Runtime puts beside an operator, under a name that is made of the operator's
_AROUND = (*QUANTIZING, "Transpose", "Cast", "ReorderInput", "ReorderOutput")
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
    """Count the kernels of a model that ONNX Runtime has optimized."""
    counts = Counter(node.op_type for node, _ in _placements(optimized_by_runtime(model).graph))
    return KernelCounts(
        RUNTIME_TITLES[ONNXRUNTIME],
        {name: sum(counts[kernel] for kernel in kernels) for name, kernels in INTEGER_KERNELS.items()},
        {name: sum(counts[kernel] for kernel in kernels) for name, kernels in FLOAT_KERNELS.items()},
    )


def find_kernels(model: ir.Model) -> Mapping[str, Kernel]:
    """Kernel of each node of a model that ONNX Runtime has optimized, those of nested graphs too.

    Every node gets a name that ONNX Runtime keeps, or makes others of; so an operator is found again where
    the file gives no names, or the same one twice. The model is left as it is; the names of its nodes are
    unique.
    """
    marked = model.clone()
    nodes = zip(every_node(marked.graph), every_node(model.graph), strict=True)
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
        if index in found and kernel.op_type in _AROUND:
            continue
        found[index] = Kernel(placement, kernel.op_type)
    gone = Kernel("gone")
    return {node.name or "": found.get(index, gone) for index, node in enumerate(every_node(model.graph))}


def optimized_by_runtime(model: bytes | Path | StoredModel) -> onnx.ModelProto:
    """Return the graph that ONNX Runtime runs for a model; without constants that lie outside."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimized.onnx"
        Session(model, threads=1, writes=Written(path, apart=True))
        return onnx.load(path, load_external_data=False)


def _placements(
    graph: onnx.GraphProto, around: frozenset[str] = frozenset()
) -> Iterator[tuple[onnx.NodeProto, KernelPlacement]]:
    """Yield each kernel with where it computes; types are followed, since the file does not hold them all.

    ``around`` are integers of the graphs that it is nested in.
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


class OnnxRuntime(Engine):
    """The runtime that everything else of ptq works with, too."""

    name = ONNXRUNTIME
    has_profiler = True

    def __init__(self, kernels: Kernels = DEFAULT_KERNELS) -> None:
        self._kernels = kernels

    @property
    def title(self) -> str:
        """The name by its makers, and the level if one was chosen."""
        level = self._kernels.accuracy_level
        return super().title if level is None else f"{super().title} at accuracy level {level}"

    def require(self) -> None:
        """Do nothing: ptq depends on it."""

    def version(self) -> str:
        """Return its name and version."""
        return f"onnxruntime {onnxruntime.__version__}"

    def open(self, model: Model, *, threads: int) -> Session:
        """Return a session."""
        return Session(model, threads=threads, kernels=self._kernels)

    def find_kernels(self, model: ir.Model) -> Mapping[str, Kernel]:
        """Return the kernel of each node, from the graph that it optimized."""
        return find_kernels(model)

    def count_kernels(self, model: StoredModel) -> KernelCounts:
        """Return how many kernels there are, from the graph that it optimized."""
        return count_kernels(model)


ONNX_RUNTIME = OnnxRuntime()
EXACT_BLOCKS = OnnxRuntime(Kernels(EXACT))  # no rounding of activations beside block weights
AS_WRITTEN = OnnxRuntime(Kernels(EXACT, exact_sums=True))  # for files of runtimes that do not saturate
IN_FLOATS = OnnxRuntime(Kernels(EXACT, integers=False))  # for ``Target.pairs_as_written``


ENGINES: dict[str, Engine] = {engine.name: engine for engine in (ONNX_RUNTIME, OPEN_VINO, QNN_HTP)}


def engine_of(target: Target) -> Engine | None:
    """Return the runtime that a target's table names; None if ptq cannot run its models.

    The HTP simulator is for who tests on it: where it is not installed, the target has no runtime.
    """
    engine = ENGINES.get(target.runtime)
    return None if engine is QNN_HTP and not is_installed() else engine


def require_runtime(target: Target) -> None:
    """Refuse a target before any work is done for it whose runtime is not installed."""
    if engine := engine_of(target):
        engine.require()


def measuring_engine(target: Target, asked: str | None = None) -> Engine:
    """Return the runtime that measures models of a target: its own, or ONNX Runtime if it names none.

    ONNX Runtime then rounds no activations beside weights in blocks: the target's runtime does not.
    The recipe may ask for another by name.
    """
    engine = engine_of(target) if asked is None else ENGINES[asked]
    if engine in (None, ONNX_RUNTIME) and target.pairs_as_written:
        return IN_FLOATS
    if engine is None:
        return AS_WRITTEN
    if asked is not None:
        engine.require()
    return engine


def engine_alone(target: Target, asked: str | None = None) -> Engine | None:
    """Return the runtime of single kernels of a target's files; None if they are not compared so."""
    name = asked or target.runtime
    if name == OPENVINO:
        return OPEN_VINO
    if name == QNN:
        return QNN_HTP if is_installed() else None
    return EXACT_BLOCKS if name == ONNXRUNTIME and not target.pairs_as_written else None


class ReopenedModel:
    """Runs batches of a model whose constants lie beside its graph, and lets go of them after each.

    To open it costs what ONNX Runtime takes to look through the graph: the constants are mapped, and read as
    operators ask for them.
    """

    def __init__(self, model: StoredModel, *, threads: int, engine: Engine = ONNX_RUNTIME) -> None:
        self._model = model
        self._threads = threads
        self._engine = engine

    def run(self, inputs: Mapping[str, Array]) -> Sequence[Array]:
        """Return the outputs for one batch."""
        return self._engine.open(self._model, threads=self._threads).run(inputs)


def at_level(engine: Engine, level: int) -> Engine:
    """Return a runtime with an accuracy level of MatMulNBits; itself if it has none.

    Example:
        >>> at_level(ONNX_RUNTIME, 0).title, at_level(OPEN_VINO, 0).title
        ('ONNX Runtime at accuracy level 0', 'OpenVINO')
    """
    return OnnxRuntime(Kernels(level)) if engine is ONNX_RUNTIME else engine
