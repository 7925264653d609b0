"""Models as their files will hold them: constants outside the graph, shared or mapped, and checked."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import CheckerPass

from ptq_cli.core.errors import InvalidOnnxError, first_line
from ptq_cli.core.files import PartialFolder
from ptq_cli.models.files.mapped_constants import (
    ALIGNMENT,
    WAITING_SUFFIX,
    ConstantsFile,
    MovedTensor,
    cannot_write,
    moved_tensor,
    release_tensor,
    turned_tables,
    write_tensor,
)
from ptq_cli.models.files.stored import SMALLEST_MAPPED, StoredModel, constants_of, serialize

LARGEST_BYTES = 2**31 - 2**24  # of constants in one file, with some room for the nodes
SMALLEST_EXTERNAL = 1 << 14  # bytes; shapes are inferred from smaller constants, in the graph


def store_model(model: ir.Model, folder: Path, name: str, begun: ConstantsFile | None = None) -> StoredModel:
    """Return a model as its files will hold it, and the model with its large constants in them.

    The constants of a model that is too large for one file are written one by one, and let go. The file lies
    in a folder of its own inside ``folder`` until it is moved to its place.

    Args:
        model: its constants are changed in place, from values to places in the file.
        folder: where the model will lie.
        name: of the graph's file there, which the other one is named for.
        begun: the file, where some of the constants are in it already: the others are kept apart too, even
            if one file would hold them. It is written again if it holds what is not a constant any more.
    """
    if begun is None and constant_bytes(model) <= LARGEST_BYTES:
        return serialize(in_memory(model))
    tensors = [value.const_value for value in constants_of(model) if value.const_value is not None]
    if begun is not None and begun.holds_only(tensors):
        return _store_apart(model, begun)
    stored = _store_apart(model, ConstantsFile(folder, name))
    if begun is not None:
        begun.remove()
    return stored


def in_memory(model: ir.Model) -> ir.Model:
    """Return a model with all constants in memory, which may be the same one."""
    for value in constants_of(model):
        if isinstance(value.const_value, MovedTensor):
            value.const_value = ir.tensor(value.const_value.numpy(), name=value.name)
    return ir.external_data.load_to_model(model)


def store_mapped(model: ir.Model, folder: Path, name: str) -> StoredModel:
    """Return a model as ``store_model`` does; many bytes of constants wait in a file, and are mapped from it.

    Stages cut out of it, and their sessions, then share the file, where each would hold a copy. The file goes
    with the last user of the model.
    """
    if not SMALLEST_MAPPED <= constant_bytes(model) <= LARGEST_BYTES:
        return store_model(model, folder, name)
    return _store_apart(model, ConstantsFile(folder, name, WAITING_SUFFIX))


def mapped_model(stored: StoredModel, folder: Path) -> StoredModel:
    """Return a model whose constants are mapped from a file inside ``folder``, if they are many bytes."""
    if stored.data or stored.size < SMALLEST_MAPPED:
        return stored
    return store_mapped(stored.load(), folder, "model.onnx")


def _store_apart(model: ir.Model, file: ConstantsFile) -> StoredModel:
    turned = turned_tables(model.graph)
    for value in constants_of(model):
        tensor = value.const_value
        if value.name not in turned and tensor is not None and _is_moved(tensor) and not file.holds(tensor):
            value.const_value = file.add(tensor, value.name or "")
            release_tensor(tensor)
    for name, table in turned.items():
        place = model.graph.initializers[table].const_value
        assert place is not None  # noqa: S101 - it was found to be a constant
        model.graph.initializers[name].const_value = moved_tensor(place, np.transpose, name)
    if not file.path.stat().st_size:
        return serialize(model)
    content, folder = serialize(model).content, file.path.parent
    return StoredModel(content=content, data=(file.path,), folder=folder, keeper=file.keeper)


def lies_apart(size: int) -> bool:
    """Return whether a constant of so many bytes is kept outside the graph of a large model."""
    return size >= SMALLEST_EXTERNAL


def is_large(model: ir.Model) -> bool:
    """Tell whether constants of a model are written outside its graph, or must be."""
    tensors = [value.const_value for value in constants_of(model)]
    outside = [tensor for tensor in tensors if isinstance(tensor, ir.ExternalTensor)]
    apart = any(Path(tensor.path).suffix != WAITING_SUFFIX for tensor in outside)
    return apart or constant_bytes(model) > LARGEST_BYTES


def constant_bytes(model: ir.Model) -> int:
    """Return how many bytes the constants of a model have."""
    tensors = (value.const_value for value in constants_of(model))
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def release(model: ir.Model) -> None:
    """Release the memory that constants were mapped into; they are mapped again when asked for."""
    for value in constants_of(model):
        release_tensor(value.const_value)


def _is_moved(tensor: ir.TensorProtocol) -> bool:
    large = lies_apart(tensor.nbytes) and tensor.dtype != ir.DataType.STRING
    return large or isinstance(tensor, ir.ExternalTensor)


CHECKED_NAME = "checked.onnx"
CHECKED_WHOLE = 2**28  # bytes; of a larger graph the checker sees large constants as inputs


def check_stored(stored: StoredModel, model: ir.Model, what: str) -> None:
    """Run the ONNX checker with full checks on what ``store_model`` made of ``model``."""
    try:
        if stored.folder is not None and stored.data:
            _check_beside_data(stored, stored.folder)
        elif len(stored.content) > CHECKED_WHOLE:
            CheckerPass(full_check=True)(model)
        else:
            onnx.checker.check_model(stored.content, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise InvalidOnnxError(
            f"'{what}' fails the ONNX checker: {first_line(error)}", hint="export it again"
        ) from error


def _check_beside_data(stored: StoredModel, folder: Path) -> None:
    path = folder / CHECKED_NAME
    try:
        path.write_bytes(stored.content)
    except OSError as error:
        raise cannot_write(path, error) from error
    onnx.checker.check_model(str(path), full_check=True)
    path.unlink()


SMALLEST_SHARED = 1 << 10  # bytes; ONNX Runtime infers shapes from smaller constants
LINE = 64  # bytes of a cache line, for constants below a page


@dataclass(frozen=True, kw_only=True)
class SharedConstants:
    """Models whose large constants lie in one file, how many are shared, and the bytes that this saved."""

    models: tuple[StoredModel, ...]
    shared: int
    saved: int


def share_constants(models: Sequence[StoredModel], folder: Path, name: str) -> SharedConstants:
    """Return models with their large constants, each content once, in one file that is moved there later."""
    keeper = PartialFolder(folder, name)
    path = keeper.path / name
    pool = _Pool(path)
    graphs = [model.load() for model in models]
    try:
        with path.open("wb") as stream:
            for number, graph in enumerate(graphs):
                turned = turned_tables(graph.graph)
                for value in constants_of(graph):
                    if value.name not in turned:
                        pool.add(value, number, stream)
    except OSError as error:
        keeper.remove()
        raise cannot_write(folder / name, error) from error
    contents = [serialize(graph).content for graph in graphs]
    stored = [
        StoredModel(content=content, data=(path,), folder=keeper.path, keeper=keeper) for content in contents
    ]
    several = [item for item in pool.readers.values() if len(item) > 1]
    saved = sum(pool.sizes[key] * (len(item) - 1) for key, item in pool.readers.items())
    return SharedConstants(models=tuple(stored), shared=len(several), saved=saved)


class _Pool:
    """The constants in a file, by their content."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: dict[bytes, tuple[int, int]] = {}
        self.readers: dict[bytes, set[int]] = {}
        self.sizes: dict[bytes, int] = {}

    def add(self, value: ir.Value, reader: int, stream: BinaryIO) -> None:
        """Read a constant from the file, after writing it if it is large and not there."""
        tensor = value.const_value
        if tensor is None or tensor.nbytes < SMALLEST_SHARED or tensor.dtype == ir.DataType.STRING:
            return
        content = hashlib.sha256(f"{tensor.dtype} {tensor.shape}".encode())
        content.update(tensor.tobytes())
        key = content.digest()
        if key not in self._places:
            stream.write(bytes(-stream.tell() % (ALIGNMENT if tensor.nbytes >= ALIGNMENT else LINE)))
            offset = stream.tell()
            write_tensor(tensor, stream)
            self._places[key] = offset, stream.tell() - offset
            self.sizes[key] = stream.tell() - offset
        self.readers.setdefault(key, set()).add(reader)
        shape = ir.Shape(tensor.shape.numpy())
        value.const_value = ir.ExternalTensor(
            self._path.name,
            *self._places[key],
            tensor.dtype,
            shape=shape,
            name=value.name or "",
            base_dir=self._path.parent,
        )
        release_tensor(tensor)
