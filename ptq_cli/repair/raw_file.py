"""The message of a model's file, of which single constants are changed and all else stays as it is."""

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from ptq_cli.core.errors import ModelFormatError, UnrepairableError, UsageError
from ptq_cli.core.files import PartialFolder
from ptq_cli.core.tensors import Array
from ptq_cli.models.files.mapped_constants import DATA_SUFFIX
from ptq_cli.models.files.stored import StoredModel, external_tensors
from ptq_cli.models.graph_reading import labeled_graphs
from ptq_cli.models.loading.onnx_source import load_onnx
from ptq_cli.models.loading.source import ModelKind, detect_kind
from ptq_cli.qdq.read.quantized_file import named

ConstantReader = tuple[ir.Node, int]  # a node, and which of its inputs


def load_only_onnx(path: Path) -> ir.Model:
    """Load an ONNX file, and refuse any other."""
    kind = detect_kind(path)
    if kind is not ModelKind.ONNX:
        raise ModelFormatError(
            f"model '{path.name}' is a {kind.value}, expected an ONNX model",
            hint="ptq repair reads ONNX files",
        )
    return load_onnx(path)


@dataclass(kw_only=True)
class RawFile:
    """A file's message beside the graph that was made of it.

    Attributes:
        model: the graph, with constants as initializers and names of its own.
        copied: constants that something else reads, too, so that a layer got new ones beside them.
    """

    path: Path
    message: onnx.ModelProto
    model: ir.Model
    _tensors: dict[int, tuple[ir.TensorProtocol, onnx.TensorProto]] = field(default_factory=dict)
    _constants: dict[str, onnx.NodeProto] = field(default_factory=dict)
    _nodes: dict[int, tuple[ir.Node, onnx.NodeProto, onnx.GraphProto]] = field(default_factory=dict)
    _added: dict[tuple[int, int], int] = field(default_factory=dict)
    copied: list[str] = field(default_factory=list)
    _patches: dict[tuple[str, int], bytes] = field(default_factory=dict)
    _places: dict[str, str] = field(default_factory=dict)
    _keeper: PartialFolder | None = None

    @classmethod
    def open(cls, path: Path) -> "RawFile":
        """Read and check a file."""
        model = load_only_onnx(path)
        message = onnx.load(path, load_external_data=False)
        raw = cls(path=path, message=message, model=model)
        raw._match(model.graph, message.graph)
        raw.model = named(model)
        return raw

    def _match(self, graph: ir.Graph, message: onnx.GraphProto) -> None:
        """Find the message of each constant and each node, which both hold in the same order."""
        for tensor in message.initializer:
            value = graph.initializers.get(tensor.name)
            if value is not None and value.const_value is not None:
                self._tensors[id(value.const_value)] = value.const_value, tensor
        nodes = {output: node for node in message.node for output in node.output if output}
        for node in graph:
            own = nodes.get(next((item.name or "" for item in node.outputs if item.name), ""))
            if own is None or own.op_type != node.op_type:
                continue
            self._nodes[id(node)] = node, own, message
            attributes = {item.name: item for item in own.attribute}
            if node.op_type == "Constant" and "value" in attributes:
                tensor_value = node.attributes["value"].as_tensor()
                self._tensors[id(tensor_value)] = tensor_value, attributes["value"].t
            elif node.op_type == "Constant":
                self._constants[own.output[0]] = own
            for label, inner in labeled_graphs(node).items():
                name, _, number = label.rpartition(".") if label not in attributes else (label, "", "")
                holder = attributes[name]
                self._match(inner, holder.graphs[int(number)] if number else holder.g)

    def change(self, value: ir.Value, array: Array, uses: list[ConstantReader]) -> None:
        """Change a constant for some of its readers; whoever else reads it keeps what it was."""
        added = {self._added.get((id(node), index)) for node, index in uses}
        if None not in added and len(added) == 1:
            _fill(self.message.graph.initializer[added.pop() or 0], array)
        elif {(use.node, use.idx) for use in value.uses()} <= set(uses) and not value.is_graph_output():
            self._set(value, array)
        else:
            self._add(value, array, uses)

    def _set(self, value: ir.Value, array: Array) -> None:
        tensor = self._tensor_of(value)
        if tensor is None:
            node = self._constants[value.name or ""]
            (attribute,) = node.attribute
            if attribute.name == "value_float":
                attribute.f = float(array.reshape(-1)[0])
            else:
                attribute.floats[:] = array.reshape(-1).tolist()
        elif tensor.data_location == onnx.TensorProto.EXTERNAL:
            details = {item.key: item.value for item in tensor.external_data}
            place = details["location"], int(details.get("offset", 0))
            self._patches[place] = np.ascontiguousarray(array).tobytes()
        else:
            _fill(tensor, array)

    def _add(self, value: ir.Value, array: Array, uses: list[ConstantReader]) -> None:
        found = [self._nodes.get(id(node)) for node, _ in uses]
        if None in found:
            raise UnrepairableError(
                f"'{value.name}' is read by a function of the model and by something else",
                hint="inline the functions first: onnx.inliner.inline_local_functions",
            )
        names = {item.name for item in self.message.graph.initializer}
        names |= {name for node in self.message.graph.node for name in (*node.input, *node.output)}
        name = next(
            text
            for number in range(len(names) + 1)
            if (text := f"{value.name}_repaired_{number}") not in names
        )
        tensor = numpy_helper.from_array(np.ascontiguousarray(array), name)
        self.message.graph.initializer.append(tensor)
        self.copied.append(value.name or "")
        for (node, index), item in zip(uses, found, strict=True):
            assert item is not None  # noqa: S101 - looked at above
            item[1].input[index] = name
            self._added[id(node), index] = len(self.message.graph.initializer) - 1

    def _tensor_of(self, value: ir.Value) -> onnx.TensorProto | None:
        assert value.const_value is not None  # noqa: S101 - only constants are changed
        found = self._tensors.get(id(value.const_value))
        if found is not None:
            return found[1]
        if (value.name or "") in self._constants:
            return None
        raise UnrepairableError(
            f"'{value.name}' is a constant of a function of the model",
            hint="inline the functions first: onnx.inliner.inline_local_functions",
        )

    def input_name(self, node: ir.Node, index: int) -> str | None:
        """Return the name in the file of what a node of the main graph reads; None of any other node."""
        found = self._nodes.get(id(node))
        return found[1].input[index] if found is not None and found[2] is self.message.graph else None

    def stored(self, target: Path) -> StoredModel:
        """Return the file as it is now, with what it keeps beside the graph in a folder beside ``target``."""
        locations = dict.fromkeys(
            item.value
            for tensor in external_tensors(self.message)
            for item in tensor.external_data
            if item.key == "location"
        )
        if not locations:
            return StoredModel(content=self.message.SerializeToString())
        if self._keeper is None:
            self._keeper = PartialFolder(target.parent, target.name)
            self._places = self._copied(target, list(locations), self._keeper.path)
        for (location, offset), content in self._patches.items():
            with (self._keeper.path / self._places[location]).open("r+b") as stream:
                stream.seek(offset)
                stream.write(content)
        message = onnx.ModelProto()
        message.CopyFrom(self.message)
        for tensor in external_tensors(message):
            for item in tensor.external_data:
                if item.key == "location":
                    item.value = self._places[item.value]
        folder = self._keeper.path
        data = tuple(folder / place for place in self._places.values())
        content = message.SerializeToString()
        return StoredModel(content=content, data=data, folder=folder, keeper=self._keeper)

    def _copied(self, target: Path, locations: list[str], folder: Path) -> dict[str, str]:
        """Copy the files of constants; return their new names, which are the old ones in another folder."""
        names = [Path(location).name for location in locations]
        if os.path.realpath(target.parent) == os.path.realpath(self.path.parent):
            ends = [""] if len(names) == 1 else [f".{number}" for number in range(len(names))]
            names = [f"{target.name}{end}{DATA_SUFFIX}" for end in ends]
        for location, name in zip(locations, names, strict=True):
            if (target.parent / name).exists() and not target.exists():
                raise UsageError(
                    f"'{target.parent / name}' exists already, and would be overwritten",
                    hint="pass another file with --output",
                )
            shutil.copyfile(self.path.parent / location, folder / name)
        return dict(zip(locations, names, strict=True))


def _fill(tensor: onnx.TensorProto, array: Array) -> None:
    """Give a tensor new values, in the field that holds its old ones."""
    if tensor.HasField("raw_data"):
        tensor.raw_data = np.ascontiguousarray(array).tobytes()
    elif tensor.data_type == onnx.TensorProto.FLOAT:
        tensor.float_data[:] = array.reshape(-1).tolist()
    elif tensor.data_type == onnx.TensorProto.DOUBLE:
        tensor.double_data[:] = array.reshape(-1).tolist()
    else:  # Smaller integers, and halves by their bits
        bits = array.view(np.uint16) if array.dtype.itemsize == 2 and array.dtype.kind != "i" else array
        tensor.int32_data[:] = bits.reshape(-1).tolist()
