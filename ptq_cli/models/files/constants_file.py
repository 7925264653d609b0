"""The file of a large model's constants while it is written, one constant after the other."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Protocol, cast

import onnx_ir as ir

from ptq_cli.core.errors import OutputFileError
from ptq_cli.core.files import PartialFolder

ALIGNMENT = 4096
"""A page: each constant can be mapped by itself."""
DATA_SUFFIX = ".data"


class _Written(Protocol):
    """What every tensor of onnx_ir can do beside what its protocol says."""

    def tofile(self, file: BinaryIO) -> None: ...


class ConstantsFile:
    """A file that constants are added to, in a folder of its own until it is moved to its place.

    Attributes:
        path: the file.
        keeper: whose end removes the folder.

    Example:
        >>> import tempfile
        >>> file = ConstantsFile(Path(tempfile.mkdtemp()), "m.onnx")
        >>> tensor = file.write([b"ab", b"c"], ir.DataType.INT8, (3,), "w")
        >>> tensor.offset, tensor.numpy().tolist(), file.holds(tensor)
        (0, [97, 98, 99], True)
        >>> file.remove()
    """

    def __init__(self, folder: Path, name: str) -> None:
        """Make the file.

        Args:
            folder: where the model will lie.
            name: of the graph's file there, which this one is named for.

        Raises:
            OutputFileError: it cannot be made in that folder.
        """
        self.keeper = PartialFolder(folder, name)
        self.path = data_path(self.keeper.path / name)
        self._place = data_path(folder / name)
        self._offsets: set[int] = set()
        try:
            with self.path.open("wb"):
                pass
        except OSError as error:
            raise self._failed(error) from error

    def write(
        self, blocks: Iterable[bytes | memoryview], dtype: ir.DataType, shape: tuple[int, ...], name: str
    ) -> ir.ExternalTensor:
        """Add a constant as it is computed, and return where it is.

        Args:
            blocks: its bytes, as the file has them, in order.
            dtype: of the constant.
            shape: of the constant.
            name: of the constant.

        Raises:
            OutputFileError: the disk is full.
        """
        try:
            with self.path.open("r+b") as stream:
                offset = _aligned(stream)
                for block in blocks:
                    stream.write(block)
                length = stream.tell() - offset
        except OSError as error:
            raise self._failed(error) from error
        return self._at(offset, length, dtype, shape, name)

    def add(self, tensor: ir.TensorProtocol, name: str) -> ir.ExternalTensor:
        """Add a constant that another file or the memory holds, and return where it is now.

        Raises:
            OutputFileError: the disk is full.
        """
        try:
            with self.path.open("r+b") as stream:
                offset = _aligned(stream)
                write_tensor(tensor, stream)
                length = stream.tell() - offset
        except OSError as error:
            raise self._failed(error) from error
        return self._at(offset, length, tensor.dtype, tuple(tensor.shape.numpy()), name)

    def holds(self, tensor: ir.TensorProtocol) -> bool:
        """Return whether a constant is in the file."""
        return isinstance(tensor, ir.ExternalTensor) and Path(tensor.path) == self.path

    def holds_only(self, tensors: Iterable[ir.TensorProtocol]) -> bool:
        """Return whether all that was added to the file is still one of these constants."""
        found = {item.offset for item in tensors if isinstance(item, ir.ExternalTensor) and self.holds(item)}
        return found == self._offsets

    def remove(self) -> None:
        """Remove the file and its folder: nobody will move it to its place."""
        self.keeper.remove()

    def _at(
        self, offset: int, length: int, dtype: ir.DataType, shape: tuple[int, ...], name: str
    ) -> ir.ExternalTensor:
        self._offsets.add(offset)
        return ir.ExternalTensor(
            self.path.name,
            offset,
            length,
            dtype,
            shape=ir.Shape(shape),
            name=name,
            base_dir=self.path.parent,
        )

    def _failed(self, error: OSError) -> OutputFileError:
        self.remove()
        return cannot_write(self._place, error)


def named_alike(tensor: ir.ExternalTensor, name: str) -> ir.ExternalTensor:
    """Return a constant of the same place under another name: two may share what is stored."""
    return ir.ExternalTensor(
        tensor.location,
        tensor.offset,
        tensor.length,
        tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=name,
        base_dir=tensor.base_dir,
    )


def write_tensor(tensor: ir.TensorProtocol, stream: BinaryIO) -> None:
    """Write the values of a constant as ONNX keeps them outside a graph."""
    cast(_Written, tensor).tofile(stream)
    stream.flush()


def cannot_write(path: Path, error: OSError) -> OutputFileError:
    """Return the error to raise where a file of a model cannot be written."""
    return OutputFileError(
        f"cannot write '{path}': {(error.strerror or str(error)).lower()}",
        hint="check the folder's permissions and free space",
    )


def data_path(path: Path) -> Path:
    """Return the file of a large model's constants, given that of its graph.

    Example:
        >>> data_path(Path("run/model.onnx")).name
        'model.onnx.data'
    """
    return path.with_name(f"{path.name}{DATA_SUFFIX}")


def _aligned(stream: BinaryIO) -> int:
    """Fill up to a page, and return where the next constant begins."""
    stream.seek(0, os.SEEK_END)  # Not a file for appending, into which the system copies no other one.
    stream.write(bytes(-stream.tell() % ALIGNMENT))
    return stream.tell()
