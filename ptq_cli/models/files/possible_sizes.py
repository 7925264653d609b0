"""A value of a negative size ends the process, and one of a huge size takes all memory, where ONNX infers it.

The inference of a Slice aborts on a negative size, in ONNX Runtime too.

A Split of a negative part makes one, a Pad that cuts off more than there is, a kernel larger than its input.
So sizes are inferred node by node before anything infers a whole graph, and such a file is refused.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from onnx import helper

from ptq_cli.core.errors import InvalidOnnxError, ModelFormatError
from ptq_cli.models.inlining import LARGE

Types = dict[str, onnx.TypeProto]
Constants = dict[str, onnx.TensorProto]
MOST_ELEMENTS = 1 << 38
"""Of what a node computes: a terabyte of float32."""
LONGEST_VECTOR = 1 << 26
"""Elements; of the values of a vector ONNX's inference keeps track one by one, with 140 bytes for each."""
CANNOT_RUN = "no input fits it: check the sizes of its inputs, or export it again"


def require_possible_sizes(proto: onnx.ModelProto, what: str) -> None:
    """Check that no size which follows from inputs and constants is negative, or too large for any machine.

    What depends on a size that is not known is not inferred, and neither is a function of the model.
    """
    versions = {item.domain: item.version for item in proto.opset_import}
    opset = versions.get("", versions.get("ai.onnx", 1))
    _walk(proto.graph, {}, {}, opset, what)


def require_possible_values(values: Iterable[ir.Value], what: str) -> None:
    """Check the same of values that were inferred."""
    for value in values:
        node = value.producer()
        if node is not None and value.shape is not None:
            sizes = [size if isinstance(size, int) else 0 for size in value.shape]
            _require_size(sizes, what, node.name or node.op_type, node.op_type)


def _walk(graph: onnx.GraphProto, types: Types, constants: Constants, opset: int, what: str) -> None:
    types, constants = dict(types), dict(constants)
    for tensor in graph.initializer:
        types[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
        _keep(constants, tensor.name, tensor)
    for info in graph.input:
        types.setdefault(info.name, _with_any_for_negative(info.type))
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _walk(attribute.g, types, constants, opset, what)
            if node.op_type == "Constant" and attribute.name == "value" and attribute.HasField("t"):
                _keep(constants, node.output[0], attribute.t)
        _require_channels(node, types, what)
        found = _inferred(node, types, constants, opset)
        for name, kind in found.items():
            sizes = [size.dim_value for size in kind.tensor_type.shape.dim]
            _require_size(sizes, what, node.name or name, node.op_type)
        types.update(found)


def _require_channels(node: onnx.NodeProto, types: Types, what: str) -> None:
    if node.op_type not in ("Conv", "ConvTranspose") or len(node.input) < 2 or node.input[1] not in types:
        return
    weight = types[node.input[1]].tensor_type
    sizes = [size.dim_value if size.HasField("dim_value") else None for size in weight.shape.dim]
    if 0 in sizes:
        raise InvalidOnnxError(
            f"'{what}' cannot be computed: the weight '{node.input[1]}' of '{node.name or node.output[0]}' "
            f"({node.op_type}) has the shape {sizes}, and so no elements",
            hint="check that pruning left channels in this layer, or export it again",
        )


def _inferred(
    node: onnx.NodeProto, types: Types, constants: Constants, opset: int
) -> Mapping[str, onnx.TypeProto]:
    known = {name: types[name] for name in node.input if name in types}
    if node.domain not in ("", "ai.onnx") or len(known) < len({name for name in node.input if name}):
        return {}
    try:
        schema = onnx.defs.get_schema(node.op_type, opset)
        data = {name: constants[name] for name in node.input if name in constants}
        found: Mapping[str, onnx.TypeProto] = onnx.shape_inference.infer_node_outputs(
            schema, node, known, data
        )
    # It is C++ and raises what its parts raise; the checker says what is wrong with the node.
    except Exception:  # noqa: BLE001
        return {}
    return found


def _keep(constants: Constants, name: str, tensor: onnx.TensorProto) -> None:
    is_inside = tensor.data_location != onnx.TensorProto.EXTERNAL
    size = 1
    for dimension in tensor.dims:
        size *= dimension
    if is_inside and 0 <= size <= LARGE:
        constants[name] = tensor


def _with_any_for_negative(kind: onnx.TypeProto) -> onnx.TypeProto:
    copy = onnx.TypeProto()
    copy.CopyFrom(kind)
    for size in copy.tensor_type.shape.dim if copy.HasField("tensor_type") else ():
        if size.dim_value < 0:
            size.ClearField("dim_value")
    return copy


def _require_size(sizes: Sequence[int], what: str, name: str, op_type: str) -> None:
    """Refuse the sizes of a result, 0 for an unknown one, that it cannot have."""
    result = f"'{what}' cannot be computed: the result of '{name}' ({op_type}) would have"
    for axis, size in enumerate(sizes):
        if size < 0:
            raise InvalidOnnxError(f"{result} a size of {size} on axis {axis}", hint=CANNOT_RUN)
    elements = math.prod(sizes)
    if elements > (LONGEST_VECTOR if len(sizes) == 1 else MOST_ELEMENTS):
        raise InvalidOnnxError(
            f"{result} {elements:,} elements", hint="check the sizes it is made of, or export it again"
        )


# Data of an ONNX file that lie outside it: they may name any file, and promise any size.


LARGEST_RANK = 64
"""Of a tensor outside the file; NumPy and ONNX Runtime take no more either."""
COUNT = re.compile(r"[0-9]{1,19}")


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
    return int(text) if COUNT.fullmatch(text) else -1


def _details(tensor: onnx.TensorProto) -> dict[str, str]:
    return {item.key: item.value for item in tensor.external_data}


# Text in a protobuf message: a string that is not UTF-8 reaches Python as bytes.


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
