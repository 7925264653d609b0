"""The tensors of a model for all samples at once, carried from stage to stage, spilled to temporary files."""

import math
import tempfile
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import numpy as np
import onnx
from onnx import helper

from ptq_cli.core.errors import OutputFileError
from ptq_cli.core.tensors import Array, is_array
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.qdq.read.twin_graphs import ActivationPair
from ptq_cli.qdq.staged_model import Form, Held, Stage, floats_of, integers_of
from ptq_cli.runtime.session import PREPACKED, Session

IN_MEMORY = 2 << 30  # bytes, where no limit is given
_LARGE = 1 << 24  # bytes; a file for less is not worth it


class SpillStore:
    """Arrays by key; above ``limit`` bytes in temporary files."""

    def __init__(self, folder: Path, *, limit: int = IN_MEMORY) -> None:
        """Keep ``limit`` bytes in memory, more in files without names, which go with the last reader."""
        self._folder, self._limit = folder, limit
        self._kept: dict[str, tuple[list[Array | None], int]] = {}
        self._filed: dict[str, _Filed] = {}
        self.held = 0
        self.moved = 0

    def __contains__(self, key: str) -> bool:
        """Whether there are arrays under a key."""
        return key in self._kept or key in self._filed

    def put(self, key: str, arrays: Sequence[Array | None], *, spill: bool = False) -> None:
        """Keep arrays under a key; with ``spill`` large ones, which wait long, in a file at once.

        Sequences of arrays, which ONNX has too, always stay in memory.
        """
        size = sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))
        fits = self.held + size <= self._limit and (size < _LARGE or not spill)
        if fits or not all(item is None or is_array(item) for item in arrays):
            self._kept[key] = list(arrays), size
            self.held += size
            return
        self._filed[key] = _Filed(self._folder, arrays)
        self.moved += size

    def get(self, key: str, index: int) -> Array | None:
        """Return one of a key's arrays; several threads may ask at once."""
        filed = self._filed.get(key)
        return filed.read(index) if filed is not None else self._kept[key][0][index]

    def release(self, key: str, index: int) -> None:
        """Release one of a key's arrays that is in memory; the others, and what they count for, stay."""
        if key in self._kept:
            self._kept[key][0][index] = None

    def drop(self, key: str) -> None:
        """Release a key, if it is there."""
        self.held -= self._kept.pop(key, ((), 0))[1]
        filed = self._filed.pop(key, None)
        if filed is not None:
            filed.close()


class _Filed:
    """Arrays in a file of their own."""

    def __init__(self, folder: Path, arrays: Sequence[Array | None]) -> None:
        self._places: list[tuple[int, np.dtype[np.generic], tuple[int, ...]] | None] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - the next line closes it
            self._closed = weakref.finalize(self, self._file.close)
            for array in arrays:
                if array is None:
                    self._places.append(None)
                    continue
                self._places.append((self._file.tell(), array.dtype, array.shape))
                self._file.write(np.ascontiguousarray(array).tobytes())
            self._file.flush()
        except OSError as error:
            raise OutputFileError(
                f"cannot write in '{folder}': {(error.strerror or str(error)).lower()}",
                hint="free some space, pass fewer --samples, or a larger --set runtime.max_memory=SIZE",
            ) from error

    def read(self, index: int) -> Array | None:
        place = self._places[index]
        if place is None:
            return None
        offset, dtype, shape = place
        if not math.prod(shape):
            return np.zeros(shape, dtype)
        # Copied, so that no part of the file stays mapped.
        return np.array(np.memmap(self._file, dtype, "r", offset, shape))

    def close(self) -> None:
        self._closed()


# The name of a tensor, and what is given the number of a piece and that tensor of it.
Tap = tuple[str, Callable[[int, Array], None]]


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
