"""Constants that may lie on disk: mapped, written in turn, a table read twice but stored once.

A graph in memory has both as constants, so that the layer has a weight like any other. A runtime makes
the second one when it opens the file.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Protocol, cast

import numpy as np
import onnx_ir as ir

from ptq_cli.core.errors import OutputFileError
from ptq_cli.core.files import PartialFolder
from ptq_cli.core.tensors import Array
from ptq_cli.models.graph_reading import FreshNames, constant_shape

Move = Callable[[Array], Array]
LAZY = (ir.ExternalTensor, ir.LazyTensor)


class MovedTensor(ir.LazyTensor):
    """A moved or cast tensor on disk, computed each time that it is asked for.

    Attributes:
        source: the tensor on disk.
        move: what is done to its array.
    """

    def __init__(self, source: ir.TensorProtocol, move: Move, name: str) -> None:
        # What a move does to shape and type, it does to an array that takes no memory as well.
        like = move(np.broadcast_to(np.zeros((), source.dtype.numpy()), source.shape.numpy()))
        dtype = ir.DataType.from_numpy(like.dtype)

        def read() -> ir.TensorProtocol:
            try:
                return ir.Tensor(np.array(move(source.numpy()), order="C"), dtype=dtype, name=name)
            finally:
                release_tensor(source)

        super().__init__(read, dtype, ir.Shape(like.shape), name=name)
        self.source, self.move = source, move


def moved_tensor(tensor: ir.TensorProtocol, move: Move, name: str) -> ir.TensorProtocol:
    """Return a moved tensor; one on disk is read when it is asked for."""
    if not isinstance(tensor, LAZY):
        return ir.tensor(np.asarray(move(tensor.numpy()), order="C"), name=name)
    return MovedTensor(tensor, move, name)


def release_tensor(tensor: ir.TensorProtocol | None) -> None:
    """Release the memory that a tensor was mapped into."""
    tensor = tensor.source if isinstance(tensor, MovedTensor) else tensor
    if not isinstance(tensor, ir.ExternalTensor):
        return
    # A view that somebody still holds keeps the memory, which then goes with it.
    with contextlib.suppress(BufferError):
        tensor.release()
    tensor.raw = None


@contextlib.contextmanager
def mapped(value: ir.Value) -> Iterator[Array]:
    """Yield the array of a constant, and let go of it at the end: views of it must be gone by then."""
    if value.const_value is None:
        raise ValueError(f"'{value.name}' is not a constant")
    tensor = value.const_value
    try:
        # A view of what is moved will do, where a tensor of its own would be a copy.
        yield tensor.move(tensor.source.numpy()) if isinstance(tensor, MovedTensor) else tensor.numpy()
    finally:
        release_tensor(tensor)


ALIGNMENT = 4096  # bytes, a page: each constant can be mapped by itself
DATA_SUFFIX = ".data"
WAITING_SUFFIX = ".waiting"  # of a file whose constants are merged into the graph's in the end


class _Written(Protocol):
    """A method of every tensor of onnx_ir that its protocol lacks."""

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

    def __init__(self, folder: Path, name: str, suffix: str = DATA_SUFFIX) -> None:
        """Make the file, for a model whose graph will be the file ``name`` in that folder."""
        self.keeper = PartialFolder(folder, name)
        self.path = self.keeper.path / f"{name}{suffix}"
        self._place = folder / f"{name}{suffix}"
        self._offsets: set[int] = set()
        try:
            with self.path.open("wb"):
                pass
        except OSError as error:
            raise self._failed(error) from error

    def write(
        self, blocks: Iterable[bytes | memoryview], dtype: ir.DataType, shape: tuple[int, ...], name: str
    ) -> ir.ExternalTensor:
        """Add a constant as it is computed, in blocks of its bytes, and return where it is."""
        return self._append(lambda stream: stream.writelines(blocks), dtype, shape, name)

    def add(self, tensor: ir.TensorProtocol, name: str) -> ir.ExternalTensor:
        """Add a constant that another file or the memory holds, and return where it is now."""
        shape = tuple(tensor.shape.numpy())
        return self._append(lambda stream: write_tensor(tensor, stream), tensor.dtype, shape, name)

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

    def _append(
        self, write: Callable[[BinaryIO], None], dtype: ir.DataType, shape: tuple[int, ...], name: str
    ) -> ir.ExternalTensor:
        try:
            with self.path.open("r+b") as stream:
                stream.seek(
                    0, os.SEEK_END
                )  # Not a file for appending, into which the system copies no other one.
                stream.write(bytes(-stream.tell() % ALIGNMENT))
                offset = stream.tell()
                write(stream)
                length = stream.tell() - offset
        except OSError as error:
            raise self._failed(error) from error
        self._offsets.add(offset)
        return ir.ExternalTensor(
            self.path.name, offset, length, dtype, shape=ir.Shape(shape), name=name, base_dir=self.path.parent
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
    """Return the file of a large model's constants, given that of its graph."""
    return path.with_name(f"{path.name}{DATA_SUFFIX}")


_MARK = "ptq.turned_table"  # metadata key of the Transposes that stand for a constant
_SMALLEST = 1 << 14  # bytes; a smaller table is not worth a node
_PRODUCTS = ("Gemm", "MatMul")


def is_turned(table: ir.Value, weight: ir.Value) -> bool:
    """Return whether a constant matrix is the transpose of another one."""
    source, tensor = _turned_source(weight), table.const_value
    if source is not None and isinstance(tensor, ir.ExternalTensor):
        places = [(item.path, item.offset, item.dtype) for item in (source, tensor)]
        if places[0] == places[1]:
            return True
    with mapped(table) as one, mapped(weight) as other:
        if one.ndim != other.ndim or one.shape != other.shape[::-1]:
            return False
        return np.array_equal(one[0], other[:, 0]) and np.array_equal(one.T, other)


def _turned_source(weight: ir.Value) -> ir.ExternalTensor | None:
    """Return the table on disk that a constant is the transpose of; None of any other constant."""
    tensor = weight.const_value
    if not isinstance(tensor, MovedTensor) or tensor.move is not np.transpose:
        return None
    return tensor.source if isinstance(tensor.source, ir.ExternalTensor) else None


def turned_tables(graph: ir.Graph) -> dict[str, str]:
    """Return, by the name of each weight that is a transposed table of embeddings, the name of the table."""
    constants = [value for value in graph.initializers.values() if _is_matrix(value)]
    tables = [value for value in constants if any(use.node.op_type == "Gather" for use in value.uses())]
    weights = [value for value in constants if all(use.node.op_type in _PRODUCTS for use in value.uses())]
    return {
        weight.name or "": table.name or ""
        for table in tables
        for weight in weights
        if constant_shape(table) == constant_shape(weight)[::-1]
        and table.dtype == weight.dtype
        and is_turned(table, weight)
    }


def weights_of_tables_apart(graph: ir.Graph) -> dict[str, str]:
    """Return the weights that are transposed tables on disk; of what reads the table this may be no part."""
    values = graph.initializers.items()
    return {name: "" for name, value in values if _is_matrix(value) and _turned_source(value) is not None}


def with_transposes(model: ir.Model, turned: Mapping[str, str]) -> ir.Model:
    """Return a copy of a model in which these weights are Transposes of their tables.

    A table without a name is not in the graph; it is added from where the weight has it.
    """
    model = model.clone()
    graph, names = model.graph, FreshNames.of(model.graph)
    for name, table in turned.items():
        weight = graph.initializers.pop(name)
        node = ir.node(
            "Transpose",
            [graph.initializers[table] if table else _add_table(graph, weight, names)],
            {"perm": [1, 0]},
            name=names.claim(f"{name}/Transpose"),
            metadata_props={_MARK: "1"},
        )
        output = node.outputs[0]
        output.type, output.shape = weight.type, weight.shape
        weight.replace_all_uses_with(output)
        weight.name, output.name = None, name
        graph.insert_before(next(iter(graph)), [node])
    return model


def _add_table(graph: ir.Graph, weight: ir.Value, names: FreshNames) -> ir.Value:
    source, name = _turned_source(weight), names.claim(f"{weight.name}.table")
    assert source is not None  # noqa: S101 - it was found to be one
    shape = ir.Shape(source.shape.numpy())
    value = ir.Value(name=name, shape=shape, type=weight.type, const_value=named_alike(source, name))
    graph.register_initializer(value)
    return value


def restore_turned(model: ir.Model) -> ir.Model:
    """Make constants again of the Transposes that stand for them, in place."""
    graph = model.graph
    for node in [item for item in graph if item.op_type == "Transpose" and _MARK in item.metadata_props]:
        table, output = node.inputs[0], node.outputs[0]
        if table is None or table.const_value is None or output.is_graph_output():
            continue
        name = output.name or ""
        tensor = moved_tensor(table.const_value, np.transpose, name)
        value = ir.Value(name=name, shape=output.shape, type=output.type, const_value=tensor)
        output.replace_all_uses_with(value)
        output.name = None
        graph.remove(node, safe=True)
        graph.register_initializer(value)
    return model


def _is_matrix(value: ir.Value) -> bool:
    tensor = value.const_value
    if tensor is None or value.is_graph_input() or value.is_graph_output():
        return False
    return len(tensor.shape) == 2 and tensor.dtype.is_floating_point() and tensor.nbytes >= _SMALLEST
