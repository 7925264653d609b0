"""ONNX Runtime as the runtime of a target."""

from collections.abc import Mapping

import onnx_ir as ir
import onnxruntime

from ptq_cli.models.files.stored import StoredModel
from ptq_cli.plan.target.rules import ONNXRUNTIME
from ptq_cli.runtime.engines.engine import Engine, Kernel, KernelCounts, Model
from ptq_cli.runtime.engines.onnxruntime_kernels import count_kernels, find_kernels
from ptq_cli.runtime.sessions.session import Session


class OnnxRuntime(Engine):
    """The runtime that everything else of ptq works with, too.

    Example:
        >>> ONNX_RUNTIME.title
        'ONNX Runtime'
        >>> OnnxRuntime(accuracy_level=0).title
        'ONNX Runtime at accuracy level 0'
    """

    name = ONNXRUNTIME
    has_profiler = True

    def __init__(self, accuracy_level: int | None = None, *, exact_sums: bool = False) -> None:
        """Make a runtime.

        Args:
            accuracy_level: of MatMulNBits, which reads weights in blocks; None for ONNX Runtime's default.
            exact_sums: no sum of two products saturates, on any processor, where activations are int8.
        """
        self._level, self._exact_sums = accuracy_level, exact_sums

    @property
    def title(self) -> str:
        """What its makers call it, and the level if one was chosen."""
        return super().title if self._level is None else f"{super().title} at accuracy level {self._level}"

    def require(self) -> None:
        """Do nothing: ptq depends on it."""

    def version(self) -> str:
        """Return its name and version."""
        return f"onnxruntime {onnxruntime.__version__}"

    def open(self, model: Model, *, threads: int) -> Session:
        """Return a session."""
        return Session(model, threads=threads, accuracy_level=self._level, exact_sums=self._exact_sums)

    def find_kernels(self, model: ir.Model) -> Mapping[str, Kernel]:
        """Return the kernel of each node, from the graph that it optimized."""
        return find_kernels(model)

    def count_kernels(self, model: StoredModel) -> KernelCounts:
        """Return how many kernels there are, from the graph that it optimized."""
        return count_kernels(model)


ONNX_RUNTIME = OnnxRuntime()
