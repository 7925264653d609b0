"""The interface of a runtime that a target can name, and the names by which it is asked for nodes."""

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Protocol

import onnx_ir as ir

from ptq_cli.core.tensors import Array
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.models.graph_reading import every_node
from ptq_cli.plan.target.rules import RUNTIME_TITLES

KernelPlacement = Literal["integer", "float", "gone"]
Model = bytes | Path | StoredModel
ON_HTP, ON_FLOATS, ON_CPU = "HTP", "HTP float16", "CPU"  # kernels of Qualcomm's HTP, and beside it


@dataclass(frozen=True)
class Kernel:
    """The kernel of an operator.

    Attributes:
        placement: ``"integer"``, ``"float"``, or ``"gone"``: the runtime merged it into another operator, or
            computed it once as the model was loaded.
        name: the kernel's name in the runtime; empty if it is gone.
    """

    placement: KernelPlacement
    name: str = ""


@dataclass(frozen=True)
class KernelCounts:
    """How many kernels of each compute operator a runtime runs as integers and as floats."""

    runtime: Annotated[str, "What its makers call it."]
    integer: Annotated[
        dict[str, int],
        "By operator, such as Conv, Gemm, MatMul and LSTM. A MatMul with a bias may run as a Gemm.",
    ]
    floating: Annotated[
        dict[str, int],
        "By operator, such as Conv, Gemm, MatMul and LSTM. A MatMul with a bias may run as a Gemm.",
    ]


class OpenedModel(Protocol):
    """A model that a runtime has opened."""

    def run(self, inputs: Mapping[str, Array]) -> Sequence[Array]:
        """Return the outputs for one batch, in the order of the graph."""
        ...


class Engine(ABC):
    """A runtime.

    Attributes:
        name: what the table of a target calls it.
        has_profiler: whether its operators can be measured one by one, as ``latency.operator_times`` does.
        counted: operators whose kernels ``count_kernels`` counts.
    """

    name: ClassVar[str]
    has_profiler: ClassVar[bool] = False
    counted: ClassVar[tuple[str, ...]] = ("Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Mul", "Concat")

    @property
    def title(self) -> str:
        """The name by its makers."""
        return RUNTIME_TITLES[self.name]

    @abstractmethod
    def require(self) -> None:
        """Refuse to begin where it is not installed."""

    @abstractmethod
    def version(self) -> str:
        """Return its name and version, such as ``onnxruntime 1.31.1``."""

    @abstractmethod
    def open(self, model: Model, *, threads: int) -> OpenedModel:
        """Return the model ready to run, optimized as it is for users."""

    def open_forms(self, model: Model, *, threads: int) -> Sequence[OpenedModel]:
        """Return the model as ``open`` does, and behind it other forms that users run: for any sizes."""
        return (self.open(model, threads=threads),)

    @abstractmethod
    def find_kernels(self, model: ir.Model) -> Mapping[str, Kernel]:
        """Return the kernel of each node, those of nested graphs too, by its name.

        The model is left as it is; the names of its nodes are unique.
        """

    def count_kernels(self, model: StoredModel) -> KernelCounts:
        """Return how many nodes, those of nested graphs too, it computes in integers and in floats."""
        graph = model.load()
        kernels = self.find_kernels(graph)
        nodes = every_node(graph.graph)
        counts = Counter((node.op_type, kernels[node.name or ""].placement) for node in nodes)
        return KernelCounts(
            self.title,
            {name: counts[name, "integer"] for name in self.counted},
            {name: counts[name, "float"] for name in self.counted},
        )


# The index of a node in the graph's order, in a name that a runtime made of one of ``marked_graph``
MARK = re.compile(r"ptq\.(?:node|value)(\d+)\.")


def marked_graph(model: ir.Model) -> ir.Model:
    """Return a copy whose nodes and computed values have names that a runtime's kernels keep.

    Nodes of nested graphs keep their names.

    Example:
        >>> text = '<ir_version: 10, opset_import: ["": 20]> g (float[2] x) => (float[2] y) { y = Exp(x) }'
        >>> marked = marked_graph(ir.from_onnx_text(text))
        >>> marked.graph[0].name, marked.graph.outputs[0].name
        ('ptq.node0.', 'ptq.value0.y')
    """
    marked = model.clone()
    for index, node in enumerate(marked.graph):
        node.name = f"ptq.node{index}."
        for value in node.outputs:
            if value.name:
                value.name = f"ptq.value{index}.{value.name}"
    return marked
