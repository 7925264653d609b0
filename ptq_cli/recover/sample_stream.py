"""The tensors of a model for all samples at once, carried from stage to stage."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import onnx
from onnx import helper

from ptq_cli.core.tensors import Array
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.qdq.cut_stages import Form, Stage
from ptq_cli.qdq.read.twin_graphs import ActivationPair
from ptq_cli.qdq.staged_model import Held, floats_of, integers_of
from ptq_cli.recover.spill_store import SpillStore
from ptq_cli.runtime.session import PREPACKED, Session

Tap = tuple[str, Callable[[int, Array], None]]
"""The name of a tensor, and what is given the number of a piece and that tensor of it."""


class SampleStream:
    """Tensors between stages, for each piece of the samples."""

    def __init__(
        self,
        pairs: Mapping[str, ActivationPair],
        pieces: Sequence[Mapping[str, Array]],
        store: SpillStore,
        pool: ThreadPoolExecutor,
        judged: Collection[str] = (),
        first_judged: int = 0,
    ) -> None:
        """Begin with a model's inputs, in pieces of some samples each.

        No stage reads tensors that are ``judged``: they wait in files, of pieces from ``first_judged`` on.
        """
        self._pairs, self._store, self._pool = pairs, store, pool
        self._judged, self._first_judged = judged, first_judged
        self._count = len(pieces)
        for name in pieces[0] if pieces else ():
            self._keep(name, [Held(piece[name]) for piece in pieces])

    def run(
        self,
        form: Form,
        model: StoredModel | None = None,
        *,
        tap: Tap | None = None,
        keep: bool = True,
        first: int = 0,
        last: Collection[str] = (),
    ) -> None:
        """Run a stage on the pieces from ``first`` on, several at once, each by one thread.

        The result is that of any number of threads. ``model`` is the form's with other constants. With
        ``keep`` the outputs are kept for the stages behind; without it nothing behind ``tap`` is computed.
        What is read for the ``last`` time is released piece by piece: memory that was just used is much
        faster than other, whose pages are still to come.
        """
        made: list[dict[str, Held]] = [{} for _ in range(self._count)]
        floats = [port.name for port in form.outputs if not port.integers]
        model, (name, tapped) = model or form.model, tap or ("", None)
        shown = _with_output(model, name, floats) if keep else _up_to(model, name)
        session = Session(shown, threads=1, place=PREPACKED)

        def one(piece: int) -> None:
            feeds = {
                port.name: (self.integers if port.integers else self.floats)(port.tensor, piece)
                for port in form.inputs
            }
            arrays = dict(zip(session.outputs, session.run(feeds), strict=True))
            if tapped is not None:
                tapped(piece, arrays[name])
            if not keep:
                return
            for port in form.outputs:
                if piece < self._first_judged and port.tensor in self._judged:
                    continue
                before, array = made[piece].get(port.tensor, Held()), arrays[port.name]
                made[piece][port.tensor] = (
                    Held(before.floats, array) if port.integers else Held(array, before.integers)
                )
            for key in self._keys(last):
                self._store.release(key, piece)

        list(self._pool.map(one, range(first, self._count)))
        for key in self._keys(last):
            self._store.drop(key)
        for tensor in made[-1] if keep and made else ():
            self._keep(tensor, [held.get(tensor, Held()) for held in made])

    def has(self, tensor: str) -> bool:
        """Whether a tensor is there: it was made, and a stage that comes still reads it."""
        return f"{id(self)} floats {tensor}" in self._store

    def integers(self, tensor: str, piece: int) -> Array:
        """Return the integers of a tensor that has a pair."""
        return integers_of(self._held(tensor, piece), self._pairs[tensor])

    def floats(self, tensor: str, piece: int) -> Array:
        """Return the real values of a tensor."""
        return floats_of(self._held(tensor, piece), self._pairs.get(tensor))

    def _keys(self, names: Iterable[str]) -> list[str]:
        return [f"{id(self)} {kind} {name}" for name in names for kind in ("floats", "integers")]

    def _keep(self, name: str, held: Sequence[Held]) -> None:
        spill = name in self._judged
        self._store.put(f"{id(self)} floats {name}", [item.floats for item in held], spill=spill)
        self._store.put(f"{id(self)} integers {name}", [item.integers for item in held], spill=spill)

    def _held(self, name: str, piece: int) -> Held:
        floats = self._store.get(f"{id(self)} floats {name}", piece)
        return Held(floats, self._store.get(f"{id(self)} integers {name}", piece))


def last_readers(stages: Sequence[Stage], outputs: Iterable[str]) -> list[list[str]]:
    """Return the tensors that no stage behind each one reads; the model's outputs are never released."""
    last: dict[str, int] = {}
    for index, stage in enumerate(stages):
        last.update(dict.fromkeys((*stage.outputs, *stage.inputs), index))
    for name in outputs:
        last.pop(name, None)
    return [[name for name, at in last.items() if at == index] for index in range(len(stages))]


def _up_to(model: StoredModel, name: str) -> StoredModel:
    """Return the part of a model that computes one tensor."""
    proto = onnx.load_model_from_string(model.content)
    graph, wanted = proto.graph, {name}
    for index in reversed(range(len(graph.node))):
        if wanted.isdisjoint(graph.node[index].output):
            del graph.node[index]
        else:
            wanted.update(_names_read(graph.node[index]))
    for index in reversed(range(len(graph.initializer))):
        if graph.initializer[index].name not in wanted:
            del graph.initializer[index]
    del graph.output[:]
    graph.output.append(helper.make_empty_tensor_value_info(name))
    return StoredModel(content=proto.SerializeToString(), data=model.data, folder=model.folder)


def _names_read(node: onnx.NodeProto) -> Iterator[str]:
    yield from node.input
    for item in node.attribute:
        for inner in item.g.node:
            yield from _names_read(inner)


def _with_output(model: StoredModel, name: str, outputs: Sequence[str]) -> StoredModel:
    """Return a model that gives a further tensor; ONNX Runtime infers its type."""
    if not name or name in outputs:
        return model
    proto = onnx.load_model_from_string(model.content)
    proto.graph.output.append(helper.make_empty_tensor_value_info(name))
    return StoredModel(content=proto.SerializeToString(), data=model.data, folder=model.folder)
