"""The runtimes by name. A new one is a file, a line here, and its name in ``plan.target.rules``."""

from ptq_cli.plan.target.rules import Target
from ptq_cli.runtime.engines.engine import Engine
from ptq_cli.runtime.engines.onnxruntime_engine import ONNX_RUNTIME, OnnxRuntime
from ptq_cli.runtime.engines.openvino_engine import OPEN_VINO
from ptq_cli.runtime.sessions.block_levels import EXACT

ENGINES: dict[str, Engine] = {engine.name: engine for engine in (ONNX_RUNTIME, OPEN_VINO)}


def engine_of(target: Target) -> Engine | None:
    """Return the runtime that a target's table names; None if ptq cannot run its models.

    Example:
        >>> from ptq_cli.plan.target.target_file import load_target
        >>> [found and found.title for found in map(engine_of, map(load_target, ("openvino", "tensorrt")))]
        ['OpenVINO', None]
    """
    return ENGINES[target.runtime] if target.runtime else None


def require_runtime(target: Target) -> None:
    """Refuse a target before any work is done for it whose runtime is not installed.

    Raises:
        MissingRuntimeError: the hint says how to install it.
    """
    if engine := engine_of(target):
        engine.require()


AS_WRITTEN = OnnxRuntime(accuracy_level=EXACT, exact_sums=True)
"""ONNX Runtime for files of other runtimes, which do not saturate where this processor does."""


def measuring_engine(target: Target) -> Engine:
    """Return what models of a target are measured with: its runtime, or ONNX Runtime if it names none.

    Edge case:
        ONNX Runtime then rounds no activations beside weights in blocks: the target's runtime does not.

    Example:
        >>> from ptq_cli.plan.target.target_file import load_target
        >>> measuring_engine(load_target("tensorrt")).title
        'ONNX Runtime at accuracy level 0'
    """
    return engine_of(target) or AS_WRITTEN


def at_level(engine: Engine, level: int | None) -> Engine:
    """Return a runtime with an accuracy level of MatMulNBits; itself without one, and if it has none.

    Example:
        >>> at_level(ONNX_RUNTIME, 0).title, at_level(OPEN_VINO, 0).title, at_level(ONNX_RUNTIME, None).title
        ('ONNX Runtime at accuracy level 0', 'OpenVINO', 'ONNX Runtime')
    """
    return OnnxRuntime(level) if level is not None and engine is ONNX_RUNTIME else engine
