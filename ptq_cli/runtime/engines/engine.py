"""What a runtime has to be able to do, so that a target can name it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Protocol

import onnx_ir as ir

from ptq_cli.core.tensors import Array
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.plan.target.rules import RUNTIME_TITLES

Placement = Literal["integer", "float", "gone"]
Model = bytes | Path | StoredModel


@dataclass(frozen=True)
class Kernel:
    """What became of an operator.

    Attributes:
        placement: ``"integer"``, ``"float"``, or ``"gone"``: the runtime merged it into another operator, or
            computed it once as the model was loaded.
        name: the kernel's name in the runtime; empty if it is gone.
    """

    placement: Placement
    name: str = ""


@dataclass(frozen=True)
class KernelCounts:
    """How many kernels of each compute operator a runtime runs as integers and as floats.

    Attributes:
        runtime: what its makers call it.
        integer, floating: by operator, such as ``Conv``, ``Gemm``, ``MatMul`` and ``LSTM``. A MatMul with a
            bias may run as a Gemm.
    """

    runtime: str
    integer: dict[str, int]
    floating: dict[str, int]


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
    """

    name: ClassVar[str]
    has_profiler: ClassVar[bool] = False

    @property
    def title(self) -> str:
        """What its makers call it."""
        return RUNTIME_TITLES[self.name]

    @abstractmethod
    def require(self) -> None:
        """Refuse to begin where it is not installed.

        Raises:
            MissingRuntimeError: it cannot be imported; the hint says how to install it.
        """

    @abstractmethod
    def version(self) -> str:
        """Return its name and version, such as ``onnxruntime 1.31.1``."""

    @abstractmethod
    def open(self, model: Model, *, threads: int) -> OpenedModel:
        """Return the model ready to run, optimized as it is for users.

        Args:
            model: serialized, or the path of a file.
            threads: of one operator, at least 1.

        Raises:
            RuntimeFailedError: it cannot load the model.
        """

    @abstractmethod
    def find_kernels(self, model: ir.Model) -> Mapping[str, Kernel]:
        """Return what became of each node, those of nested graphs too, by its name.

        Args:
            model: is left as it is; the names of its nodes are unique.

        Raises:
            RuntimeFailedError: it cannot load the model.
        """

    @abstractmethod
    def count_kernels(self, model: StoredModel) -> KernelCounts:
        """Return how many kernels compute in integers.

        Raises:
            RuntimeFailedError: it cannot load the model.
        """
