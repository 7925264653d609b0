"""A serialized model: one file, or a graph with a file of its large constants beside it.

A message of protobuf holds no more than 2 GiB. Above that, the constants lie in a second file (ONNX's
external data), which is mapped into memory and never read as a whole.
"""

import hashlib
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError
from onnx_ir.passes.common import CheckerPass

from ptq_cli.core.errors import InvalidOnnxError, OutputFileError, first_line
from ptq_cli.core.files import Content, PartialFolder
from ptq_cli.core.read_files import hash_file
from ptq_cli.models.files.mapped_constants import (
    ALIGNMENT,
    WAITING_SUFFIX,
    ConstantsFile,
    MovedTensor,
    cannot_write,
    moved_tensor,
    release_tensor,
    restore_turned,
    turned_tables,
    weights_of_tables_apart,
    with_transposes,
    write_tensor,
)
from ptq_cli.models.files.one_message import LeftInFile, message_parts, read_leaving_constants
from ptq_cli.models.files.possible_sizes import (
    external_files,
    require_external_data,
    require_possible_sizes,
    require_text,
)
from ptq_cli.models.graph_reading import every_graph
from ptq_cli.models.opset import name_default_domain

LARGEST_BYTES = 2**31 - 2**24
"""Of constants in one file, with some room for the nodes."""
SMALLEST_EXTERNAL = 1 << 14
"""Bytes; a smaller constant stays in the graph, where operators' shapes are inferred from it."""
SMALLEST_MAPPED = 1 << 26
"""Bytes; copies of a smaller model cost less than a file."""


@dataclass(frozen=True, kw_only=True)
class StoredModel:
    """A serialized model.

    Attributes:
        content: the graph; of a small model, with all its constants.
        data: the files that hold the rest of the constants; none of a small model. Constants of one that
            is not large may wait in a file as well, and are written into the graph's in the end.
        folder: where these are; the graph names them from there.
        keeper: whose end removes ``folder``, where it is one for files that are not finished.

    Example:
        >>> StoredModel(content=b"onnx").size, StoredModel(content=b"").sha256[:8]
        (4, 'e3b0c442')
    """

    content: bytes = field(repr=False)
    data: tuple[Path, ...] = ()
    folder: Path | None = None
    keeper: PartialFolder | None = field(default=None, compare=False, repr=False)

    @property
    def is_apart(self) -> bool:
        """Whether it is written as more than one file."""
        return any(path.suffix != WAITING_SUFFIX for path in self.data)

    @property
    def message(self) -> bytes:
        """The graph's file as it is written."""
        return b"".join(self._parts())

    def _parts(self) -> Iterable[bytes]:
        if self.folder is None or not self.data or self.is_apart:
            return [self.content]
        return message_parts(self.content, self.folder)

    @cached_property
    def size(self) -> int:
        """How many bytes its files have."""
        outside = sum(path.stat().st_size for path in self.data) if self.is_apart else 0
        return sum(map(len, self._parts())) + outside

    @cached_property
    def sha256(self) -> str:
        """The hash of the graph's bytes, followed by those of the other files."""
        digest = hashlib.sha256()
        for part in self._parts():
            digest.update(part)
        for path in self.data if self.is_apart else ():
            hash_file(digest, path)
        return digest.hexdigest()

    def load(self, message: onnx.ModelProto | None = None) -> ir.Model:
        """Return the graph; constants outside it are mapped when they are asked for.

        A ``message`` is the parsed ``content``, which belongs to the graph from then on. What is no ONNX
        raises DecodeError.
        """
        if message is None:
            message = onnx.load_model_from_string(self.content)
        model = name_default_domain(ir.from_proto(message))
        if self.folder is not None:
            ir.external_data.set_base_dir(model.graph, self.folder)
        return restore_turned(model)

    def files(self, target: Path) -> dict[Path, Content]:
        """Return what is written where, for ``write_together``: what is not finished moves to its place."""
        if self.data and not self.is_apart:
            return {target: self._merged(target)}
        places = {target.with_name(path.name): path for path in self.data}
        for place in places:
            if place.is_symlink():
                raise OutputFileError(
                    f"cannot write '{place}': it is a symbolic link, and ONNX does not read a model's data "
                    "through one",
                    hint="remove the link, or pass another file with --output",
                )
        return places | {target: self.content}

    def _merged(self, target: Path) -> Path:
        """Write the file of a model whose constants wait beside it, ready to be moved."""
        assert self.folder is not None  # noqa: S101 - there is one wherever there are files
        path = self.folder / target.name
        try:
            with path.open("wb") as stream:
                stream.writelines(self._parts())
        except OSError as error:
            raise cannot_write(target, error) from error
        return path

    def discard(self) -> None:
        """Remove what is not finished: nobody will move it to its place."""
        if self.keeper is not None:
            self.keeper.remove()

    def copied(self, folder: Path, name: str) -> "StoredModel":
        """Return the model with its data in a file of its own inside ``folder``, ready to be moved."""
        if not self.is_apart:
            return self
        keeper = PartialFolder(folder, name)
        try:
            files = [Path(shutil.copy(path, keeper.path)) for path in self.data]
        except OSError as error:
            raise cannot_write(folder / name, error) from error
        return StoredModel(content=self.content, data=tuple(files), folder=keeper.path, keeper=keeper)


def read_model(path: Path) -> StoredModel:
    """Return a model as its files hold it, after checks of its text, its external data and its sizes.

    What is no ONNX is returned all the same: its hash is that of no model, and ``load`` raises.
    """
    return read_parsed(path)[0]


def read_parsed(path: Path) -> tuple[StoredModel, onnx.ModelProto | None]:
    """Return what ``read_model`` returns, and the message parsed for it; None where it is no ONNX."""
    content = path.read_bytes()
    try:
        message = onnx.load_model_from_string(content)
    except DecodeError:
        return StoredModel(content=content), None
    require_text(message, path.name)
    require_external_data(message, path)
    require_possible_sizes(message, path.name)
    files = external_files(message, path.parent)
    return StoredModel(content=content, data=files, folder=path.parent if files else None), message


def read_mapped(path: Path) -> LeftInFile | None:
    """Return a file with its large constants left in it; None of one that is read whole."""
    if path.stat().st_size < SMALLEST_MAPPED:
        return None
    left = read_leaving_constants(path)
    return left if left is not None and not external_files(left.message, path.parent) else None


def data_files(path: Path) -> tuple[Path, ...]:
    """Return the files beside a model's that hold its constants."""
    return () if read_mapped(path) is not None else read_model(path).data


def holds_same_graph(one: StoredModel, other: StoredModel) -> bool:
    """Tell whether two models compute the same with the same constants, whatever else their files say.

    Of models with large constants outside their graphs, whether the files are equal.
    """
    if one.sha256 == other.sha256:
        return True
    if one.is_apart or other.is_apart:
        return False
    return _computed(one.message) == _computed(other.message)


def _computed(content: bytes) -> object:
    """Return nodes, constants, inputs and outputs; the shapes of values between them are told or are not."""
    message = onnx.load_model_from_string(content)
    graph, opsets = message.graph, {item.domain: item.version for item in message.opset_import}
    constants = {item.name: item for item in graph.initializer}, list(graph.sparse_initializer)
    return opsets, list(graph.node), constants, list(graph.input), list(graph.output), list(message.functions)


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


def serialize(model: ir.Model) -> StoredModel:
    """Return a model serialized, its large constants where they are, and a table that is tied once."""
    if turned := weights_of_tables_apart(model.graph) | turned_tables(model.graph):
        model = with_transposes(model, turned)
    outside = [value.const_value for value in constants_of(model)]
    tensors = [tensor for tensor in outside if isinstance(tensor, ir.ExternalTensor)]
    content: bytes = ir.to_proto(model).SerializeToString(deterministic=True)
    files = tuple(sorted({Path(tensor.path) for tensor in tensors}))
    return StoredModel(content=content, data=files, folder=Path(tensors[0].base_dir) if tensors else None)


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
    """Let go of the memory that constants were mapped into; they are mapped again when asked for."""
    for value in constants_of(model):
        release_tensor(value.const_value)


def constants_of(model: ir.Model) -> Iterator[ir.Value]:
    """Yield the constants of a model, those of nested graphs too."""
    for graph in every_graph(model.graph):
        yield from graph.initializers.values()


def _is_moved(tensor: ir.TensorProtocol) -> bool:
    large = lies_apart(tensor.nbytes) and tensor.dtype != ir.DataType.STRING
    return large or isinstance(tensor, ir.ExternalTensor)


# ONNX's checker, asked about a model as its files will hold it.


CHECKED_NAME = "checked.onnx"
CHECKED_WHOLE = 2**28
"""Bytes; of a larger graph the checker is shown no more than type and shape of its large constants."""


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


# Constants that several models hold are stored once, in a file that all of them read.


SMALLEST_SHARED = 1 << 10
"""Bytes; ONNX Runtime infers shapes from smaller constants, which stay in the graphs."""
LINE = 64
"""A line of a processor's cache, for what is smaller than a page."""


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
        """Let a value read its constant from the file, where it is written if it is large and not there."""
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
