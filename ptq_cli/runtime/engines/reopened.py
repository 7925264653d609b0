"""A large model that is opened for each batch: of two that are compared, only one is in memory."""

from collections.abc import Mapping, Sequence

from ptq_cli.core.tensors import Array
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.runtime.engines.engine import Engine
from ptq_cli.runtime.engines.onnxruntime_engine import ONNX_RUNTIME


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
        """Return the outputs for one batch.

        Raises:
            RuntimeFailedError: the runtime cannot load the model, or failed on the batch.
        """
        return self._engine.open(self._model, threads=self._threads).run(inputs)
