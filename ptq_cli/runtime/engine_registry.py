"""Runtimes by name, and which of them runs a target. A new one is a file and a line here."""

from collections.abc import Mapping, Sequence

from ptq_cli.core.tensors import Array
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.plan.target.rules import ONNXRUNTIME, OPENVINO, QNN, Target
from ptq_cli.runtime.engine import Engine
from ptq_cli.runtime.onnxruntime_engine import AS_WRITTEN, EXACT_BLOCKS, IN_FLOATS, ONNX_RUNTIME, OnnxRuntime
from ptq_cli.runtime.openvino import OPEN_VINO
from ptq_cli.runtime.qnn import QNN_HTP, is_installed
from ptq_cli.runtime.session import Kernels

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
        """Take a model, the number of threads of one operator, and the runtime."""
        self._model = model
        self._threads = threads
        self._engine = engine

    def run(self, inputs: Mapping[str, Array]) -> Sequence[Array]:
        """Return the outputs for one batch."""
        return self._engine.open(self._model, threads=self._threads).run(inputs)


def at_level(engine: Engine, level: int | None) -> Engine:
    """Return a runtime with an accuracy level of MatMulNBits; itself without one, and if it has none.

    Example:
        >>> at_level(ONNX_RUNTIME, 0).title, at_level(OPEN_VINO, 0).title, at_level(ONNX_RUNTIME, None).title
        ('ONNX Runtime at accuracy level 0', 'OpenVINO', 'ONNX Runtime')
    """
    return OnnxRuntime(Kernels(level)) if level is not None and engine is ONNX_RUNTIME else engine
