"""A serialized model: one file, or a graph beside its large constants; external data, which may name any.

A message of protobuf holds no more than 2 GiB. Above that, the constants lie in a second file (ONNX's
external data), which is mapped into memory and never read as a whole.
"""

import hashlib
import math
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from ptq_cli.core.errors import ModelFormatError, OutputFileError
from ptq_cli.core.files import Content, PartialFolder
from ptq_cli.core.read_files import hash_file
from ptq_cli.models.files.budgets import require_possible_sizes
from ptq_cli.models.files.mapped_constants import (
    WAITING_SUFFIX,
    cannot_write,
    restore_turned,
    turned_tables,
    weights_of_tables_apart,
    with_transposes,
)
from ptq_cli.models.files.one_message import LeftInFile, message_parts, read_leaving_constants
from ptq_cli.models.graph_reading import every_graph
from ptq_cli.models.opset import name_default_domain

LARGEST_RANK = 64  # of a tensor outside the file, as in NumPy and ONNX Runtime
_COUNT = re.compile(r"[0-9]{1,19}")


def external_files(proto: onnx.ModelProto, folder: Path) -> tuple[Path, ...]:
    """Return the files that hold data of a model's tensors, by name; ``require_external_data`` took them."""
    names = {_details(tensor).get("location", "") for tensor in external_tensors(proto)}
    return tuple(folder / name for name in sorted(names))


def external_tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield the tensors whose data lie outside the file, those of nested graphs and attributes too."""
    from onnx.external_data_helper import _get_all_tensors

    return (item for item in _get_all_tensors(proto) if item.data_location == onnx.TensorProto.EXTERNAL)


def require_external_data(proto: onnx.ModelProto, path: Path) -> None:
    """Check that every tensor's data are in a file beside the model, and that this is as long as promised."""
    folder = path.parent.resolve()
    for tensor in external_tensors(proto):
        target = _data_file(tensor, folder, path)
        if target.stat().st_nlink > 1:  # As onnx does: one of the names may be that of a secret elsewhere.
            found = f"its data file '{target.name}' has several names (hard links)"
            raise _bad_data(path, found, "put a copy of the file next to the model")
        _require_length(tensor, target, path)


def _data_file(tensor: onnx.TensorProto, folder: Path, path: Path) -> Path:
    location = _details(tensor).get("location", "")
    try:
        target = (folder / location).resolve()
        exists, is_file = target.exists(), target.is_file()
    except (OSError, ValueError) as error:  # a NUL in the name, a name that is too long, links in a circle
        found = f"the data file of '{tensor.name}' has a name that is not valid ({location!r})"
        raise _bad_data(path, found, "export it again") from error
    if not target.is_relative_to(folder) or not location:
        found = f"the data of '{tensor.name}' lie outside its folder ({location!r})"
        raise _bad_data(path, found, "ptq reads external data only from the model's folder")
    if not exists:
        found = f"the data file '{location}' of '{tensor.name}' is missing"
        raise _bad_data(path, found, "put it next to the model")
    if not is_file:
        kind = "a folder" if target.is_dir() else "not a regular file"
        found = f"the data file '{location}' of '{tensor.name}' is {kind}"
        raise _bad_data(path, found, "copy or export it again")
    return target


def _require_length(tensor: onnx.TensorProto, target: Path, path: Path) -> None:
    needed, details = _bytes_of(tensor), _details(tensor)
    offset = _count(details.get("offset") or "0")
    length = _count(details["length"]) if details.get("length") else needed
    if needed < 0 or offset < 0 or length != needed:
        raise _bad_data(
            path, f"the place of '{tensor.name}' in its data file is not valid", "export it again"
        )
    missing = offset + length - target.stat().st_size
    if missing > 0:
        found = f"its data file '{target.name}' is too short: {missing} bytes of '{tensor.name}' are missing"
        raise _bad_data(path, found, "copy or export it again")


def _bad_data(path: Path, found: str, hint: str) -> ModelFormatError:
    return ModelFormatError(f"model '{path.name}': {found}", hint=hint)


def _bytes_of(tensor: onnx.TensorProto) -> int:
    """Return how many bytes a tensor's shape and type need, or a negative number where they make no sense."""
    try:
        bits = ir.DataType(tensor.data_type).bitwidth
    except (ValueError, TypeError):  # unknown, or text, whose length no type tells
        return -1
    sizes = list(tensor.dims)
    if any(size < 0 for size in sizes) or len(sizes) > LARGEST_RANK:
        return -1
    count: int = math.prod(sizes)
    return -(-count * bits // 8)


def _count(text: str) -> int:
    """Return a number of bytes, or -1 where a text is not one: int() also takes signs, spaces and more."""
    return int(text) if _COUNT.fullmatch(text) else -1


def _details(tensor: onnx.TensorProto) -> dict[str, str]:
    return {item.key: item.value for item in tensor.external_data}


def require_text(message: Message, name: str) -> None:
    """Check that every string of a model is text: whoever meets bytes later does not expect them."""
    if not _is_text(message):
        raise ModelFormatError(
            f"model '{name}' is damaged: a name in it is not text", hint="copy or export it again"
        )


def _is_text(message: Message) -> bool:
    # By name and not with ListFields, which would copy every constant of the model.
    for name, is_message, is_repeated in _fields(message.DESCRIPTOR):
        if is_message and not is_repeated and not message.HasField(name):
            continue
        value = getattr(message, name)
        for item in value if is_repeated else (value,):
            if not _is_text(item) if is_message else isinstance(item, bytes):
                return False
    return True


@cache
def _fields(kind: Descriptor) -> tuple[tuple[str, bool, bool], ...]:
    """Return each field that may hold text: its name, whether it is a message, and whether it is repeated."""
    empty, kinds = GetMessageClass(kind)(), (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_MESSAGE)
    return tuple(
        (
            field.name,
            field.type == FieldDescriptor.TYPE_MESSAGE,
            # What a descriptor says of this has another name from version to version of protobuf.
            not isinstance(getattr(empty, field.name), str | bytes | Message),
        )
        for field in kind.fields
        if field.type in kinds
    )


SMALLEST_MAPPED = 1 << 26  # bytes; copies of a smaller model cost less than a file


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
        """Contents by file, for ``write_together``; unfinished files move to their place."""
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
    """Return the model of ``read_model`` and its parsed message; None where it is not ONNX."""
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


def serialize(model: ir.Model) -> StoredModel:
    """Return a model serialized, its large constants where they are, and a table that is tied once."""
    if turned := weights_of_tables_apart(model.graph) | turned_tables(model.graph):
        model = with_transposes(model, turned)
    outside = [value.const_value for value in constants_of(model)]
    tensors = [tensor for tensor in outside if isinstance(tensor, ir.ExternalTensor)]
    content: bytes = ir.to_proto(model).SerializeToString(deterministic=True)
    files = tuple(sorted({Path(tensor.path) for tensor in tensors}))
    return StoredModel(content=content, data=files, folder=Path(tensors[0].base_dir) if tensors else None)


def constants_of(model: ir.Model) -> Iterator[ir.Value]:
    """Yield the constants of a model, those of nested graphs too."""
    for graph in every_graph(model.graph):
        yield from graph.initializers.values()
