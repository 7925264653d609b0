"""Constants that several models hold are stored once, in a file that all of them read."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import onnx_ir as ir

from ptq_cli.core.files import PartialFolder
from ptq_cli.models.files.constants_file import ALIGNMENT, cannot_write, write_tensor
from ptq_cli.models.files.mapped_constants import release_tensor
from ptq_cli.models.files.stored import StoredModel, constants_of, serialize
from ptq_cli.models.files.turned_tables import turned_tables

SMALLEST_SHARED = 1 << 10
"""Bytes; ONNX Runtime infers shapes from smaller constants, which stay in the graphs."""
LINE = 64
"""A line of a processor's cache, for what is smaller than a page."""


@dataclass(frozen=True, kw_only=True)
class SharedConstants:
    """Models whose large constants lie in one file.

    Attributes:
        models: graphs that read it, in the order in which they were given.
        shared: number of constants that more than one model reads.
        saved: bytes that copies of these would take.
    """

    models: tuple[StoredModel, ...]
    shared: int
    saved: int


def share_constants(models: Sequence[StoredModel], folder: Path, name: str) -> SharedConstants:
    """Return models with their large constants in one file, each content once.

    Args:
        models: as their files would hold them.
        folder: where the graphs and the file will lie; until then it is in a folder of its own there.
        name: of the file.

    Raises:
        OutputFileError: the file cannot be written.
    """
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
