"""The message of a model's file, of which single constants are changed and all else stays as it is."""

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from ptq_cli.core.errors import UnrepairableError, UsageError
from ptq_cli.core.files import Content, PartialFolder, write_together
from ptq_cli.core.tensors import Array
from ptq_cli.models.files.mapped_constants import DATA_SUFFIX
from ptq_cli.models.files.stored import external_tensors
from ptq_cli.models.graph_reading import labeled_graphs
from ptq_cli.models.loading.onnx_source import load_onnx
from ptq_cli.qdq.read.quantized_file import named

Use = tuple[ir.Node, int]

@dataclass
class RawFile:
    """A file's message beside the graph that was made of it.

    Attributes:
        model: the graph, with constants as initializers and names of its own.
        copied: constants that something else reads, too, so that a layer got new ones beside them.
    """

    path: Path
    message: onnx.ModelProto
    model: ir.Model
    _tensors: dict[int, tuple[ir.TensorProtocol, onnx.TensorProto]]
    _constants: dict[str, onnx.NodeProto]
    _nodes: dict[int, tuple[ir.Node, onnx.NodeProto, onnx.GraphProto]]
    copied: list[str] = field(default_factory=list)
    _patches: dict[tuple[str, int], bytes] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path) -> "RawFile":
        """Read and check a file; ``load_onnx`` raises what it raises."""
        model = load_onnx(path)
        message = onnx.load(path, load_external_data=False)
        raw = cls(path, message, model, {}, {}, {})
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

    def set(self, value: ir.Value, array: Array) -> None:
        """Change a constant for all that reads it; its type and shape stay."""
        tensor = self._tensor_of(value)
        if tensor is None:
            node = self._constants[value.name or ""]
            (attribute,) = node.attribute
            if attribute.name == "value_float":
                attribute.f = float(array.reshape(-1)[0])
            else:
                attribute.floats[:] = [float(item) for item in array.reshape(-1)]
            return
        content = np.ascontiguousarray(array).tobytes()
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            details = {item.key: item.value for item in tensor.external_data}
            self._patches[details["location"], int(details.get("offset", 0))] = content
        elif tensor.HasField("raw_data"):
            tensor.raw_data = content
        elif tensor.data_type == onnx.TensorProto.FLOAT:
            tensor.float_data[:] = array.reshape(-1).tolist()
        elif tensor.data_type == onnx.TensorProto.DOUBLE:
            tensor.double_data[:] = array.reshape(-1).tolist()
        else:  # Smaller integers, and halves by their bits
            bits = array.view(np.uint16) if array.dtype.itemsize == 2 else array
            tensor.int32_data[:] = bits.reshape(-1).tolist()

    def add(self, value: ir.Value, array: Array, uses: list[Use]) -> None:
        """Give some readers of a constant a new one, beside it."""
        found = [self._nodes.get(id(node)) for node, _ in uses]
        if None in found:
            raise UnrepairableError(
                f"'{value.name}' is read by a function of the model and by something else",
                hint="inline the functions first: onnx.inliner.inline_local_functions",
            )
        names = {item.name for item in self.message.graph.initializer}
        names |= {name for node in self.message.graph.node for name in (*node.input, *node.output)}
        name = next(
            text for number in range(len(names) + 1) if (text := f"{value.name}_repaired_{number}") not in names
        )
        tensor = numpy_helper.from_array(np.ascontiguousarray(array), name)
        self.message.graph.initializer.append(tensor)
        self.copied.append(value.name or "")
        for (node, index), item in zip(uses, found, strict=True):
            assert item is not None  # noqa: S101 - looked at above
            item[1].input[index] = name

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

    def write(self, target: Path) -> None:
        """Write the message, with the files of its constants if it has any."""
        locations = dict.fromkeys(
            item.value
            for tensor in external_tensors(self.message)
            for item in tensor.external_data
            if item.key == "location"
        )
        if not locations:
            write_together({target: self.message.SerializeToString()})
            return
        is_here = os.path.realpath(target.parent) == os.path.realpath(self.path.parent)
        places = dict(zip(locations, _names(target, list(locations)) if is_here else locations, strict=True))
        for tensor in external_tensors(self.message):
            for item in tensor.external_data:
                if item.key == "location":
                    item.value = places[item.value]
        for place in places.values():
            if (target.parent / place).exists() and not target.exists():
                raise UsageError(
                    f"'{target.parent / place}' exists already, and would be overwritten",
                    hint="pass another file with --output",
                )
        folder = PartialFolder(target.parent, target.name)
        contents: dict[Path, Content] = {}
        for number, (location, place) in enumerate(places.items()):
            copy = folder.path / str(number)
            shutil.copyfile(self.path.parent / location, copy)
            with copy.open("r+b") as stream:
                for (of, offset), content in self._patches.items():
                    if of == location:
                        stream.seek(offset)
                        stream.write(content)
            contents[target.parent / place] = copy
        write_together(contents | {target: self.message.SerializeToString()})


def _names(target: Path, locations: list[str]) -> list[str]:
    """Return a name for each file of constants, beside those that the model has in the same folder."""
    ends = [""] if len(locations) == 1 else [f".{number}" for number in range(len(locations))]
    return [f"{target.name}{end}{DATA_SUFFIX}" for end in ends]
