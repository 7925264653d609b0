"""A large model that is opened for each batch: of two that are compared, only one is in memory."""

from collections.abc import Mapping, Sequence

from ptq_cli.core.tensors import Array
from ptq_cli.models.stored import StoredModel
from ptq_cli.runtime.session import Session


class ReopenedModel:
    """Runs batches of a model whose constants lie beside its graph, and lets go of them after each.

    To open it costs what ONNX Runtime takes to look through the graph: the constants are mapped, and read as
    operators ask for them.
    """

    def __init__(self, model: StoredModel, *, threads: int) -> None:
        """Take a model, and the number of threads of one operator."""
        self._model = model
        self._threads = threads

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> list[Array]:
        """Return the outputs for one batch.

        Raises:
            RuntimeFailedError: ONNX Runtime cannot load the model, or failed on the batch.
        """
        return Session(self._model, threads=self._threads).run(inputs, outputs)
