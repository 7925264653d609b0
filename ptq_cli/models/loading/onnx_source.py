"""ONNX files, external data included."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from ptq_cli.core.errors import (
    CacheInputError,
    InvalidOnnxError,
    ModelFormatError,
    ModelInputError,
    first_line,
)
from ptq_cli.core.tensors import Array, IndexSpec, TensorSpec, is_cache
from ptq_cli.models.batch_axes import Axes, noted_axes, with_axes
from ptq_cli.models.files import storing
from ptq_cli.models.files.budgets import require_inlinable, require_possible_sizes, require_possible_steps
from ptq_cli.models.files.mapped_constants import mapped, restore_turned
from ptq_cli.models.files.one_message import LeftInFile
from ptq_cli.models.files.stored import external_files, read_mapped, require_external_data, require_text
from ptq_cli.models.graph_reading import every_graph, every_node, value_spec
from ptq_cli.models.loading.repairs import (
    clear_declared_shapes,
    forget_negative_sizes,
    forget_sizes_of_values,
    give_outputs_types,
    make_dense,
    shorten_default_domain,
)
from ptq_cli.models.loading.source import NO_AXES, ExampleInputs, SourceFile
from ptq_cli.models.opset import OLDEST_OPSET, name_default_domain
from ptq_cli.models.preparing.half import take_float32, uses_bfloat16, without_bfloat16
from ptq_cli.models.shapes import large_constants_aside, longest_sequence, rows_of_tables


@dataclass(frozen=True)
class OnnxSource:
    """An ONNX model."""

    file: SourceFile
    model: ir.Model
    fixed: Mapping[str, Array] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the graph's inputs that are not initializers."""
        return tuple(spec.name for spec in self.example_specs)

    @property
    def example_specs(self) -> tuple[TensorSpec, ...]:
        """Name, dtype and shape of each input."""
        return input_specs(self.model)

    def with_optional(self, named: Collection[str]) -> Self:  # noqa: ARG002 - it has none
        """Return the source itself."""
        return self

    def to_onnx(self, example: ExampleInputs, axes: Axes = NO_AXES) -> ir.Model:  # noqa: ARG002 - it is ONNX already
        """Return the model."""
        return self.model

    def run(self, example: ExampleInputs) -> None:  # noqa: ARG002 - there is nothing to compare with
        """Return None: ONNX is the source itself."""
        return


def load_onnx(path: Path) -> ir.Model:
    """Load and check an ONNX file."""
    left = read_mapped(path)
    proto = _read_proto(path) if left is None else _complete(left.message, path)
    require_text(proto, path.name)
    require_external_data(proto, path)
    _require_ranks(proto, path)
    _require_opset(proto, path)
    require_inlinable(proto, path.name)
    files = external_files(proto, path.parent)
    is_dense = make_dense(proto, path.name)
    if is_dense and files:
        raise InvalidOnnxError(
            f"model '{path.name}' has sparse constants and external data, which ptq cannot read together",
            hint="export it with dense constants",
        )
    # With external data the checker reads the file itself.
    is_edited = is_dense or left is not None
    if not files:
        edits = (forget_negative_sizes(proto), shorten_default_domain(proto), give_outputs_types(proto))
        is_edited |= any(edits)
    require_possible_sizes(proto, path.name)
    model = _checked(proto, path, files, left, is_edited=is_edited)
    _require_values(model, path.name)
    require_possible_steps(model.graph, path.name)
    take_float32(model)
    return model


def _read_proto(path: Path) -> onnx.ModelProto:
    try:
        proto = onnx.load(path, load_external_data=False)
    except (DecodeError, ValueError, RuntimeError) as error:
        raise ModelFormatError(
            f"model '{path.name}' is not an ONNX file, or is damaged", hint="copy or export it again"
        ) from error
    return _complete(proto, path)


def _complete(proto: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    if not proto.HasField("graph"):
        raise ModelFormatError(f"model '{path.name}' holds no ONNX graph", hint="copy or export it again")
    if not proto.graph.output:
        raise InvalidOnnxError(f"the graph of model '{path.name}' has no output", hint="export it again")
    return proto


def _checked(
    proto: onnx.ModelProto, path: Path, files: Sequence[Path], left: LeftInFile | None, *, is_edited: bool
) -> ir.Model:
    """Return the model as ONNX's checker and its inference accept it."""
    try:
        shown = left.shown() if left is not None else proto
        onnx.checker.check_model(shown if is_edited else str(path))
        model = ir.from_proto(proto) if is_edited else _load(path, files)
        if left is not None:
            left.restore(model)
        forget_sizes_of_values(name_default_domain(model))
        restore_turned(model)
        _require_inferred(model)
    except UnicodeDecodeError as error:
        raise ModelFormatError(
            f"model '{path.name}' is damaged: a name in it is not text", hint="copy or export it again"
        ) from error
    except MemoryError:
        raise
    # The checker is C++ and raises RuntimeErrors of many kinds; onnx_ir raises what its own code meets.
    except Exception as error:
        raise InvalidOnnxError(
            f"model '{path.name}' fails the ONNX checker: {first_line(error)}", hint="export it again"
        ) from error
    return model


def _require_inferred(model: ir.Model) -> None:
    """Infer all types and shapes, as the full check does, but believe none that the file tells of results."""
    shown = without_bfloat16(model) if uses_bfloat16(model) else model
    with large_constants_aside(shown.graph):
        proto = ir.to_proto(shown)
    clear_declared_shapes(proto)
    onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)


def _require_values(model: ir.Model, name: str) -> None:
    """Refuse a constant whose bytes are not those of its shape, which the checker does not look at."""
    constants = [
        value.const_value for graph in every_graph(model.graph) for value in graph.initializers.values()
    ]
    attributes = [item for node in every_node(model.graph) for item in node.attributes.values()]
    constants += [item.value for item in attributes if item.type == ir.AttributeType.TENSOR]
    for tensor in constants:
        if not isinstance(tensor, ir.serde.TensorProtoTensor):
            continue
        try:
            tensor.numpy()
        except ValueError as error:
            raise InvalidOnnxError(
                f"model '{name}': the constant '{tensor.name}' of shape {list(tensor.shape)} holds more or "
                "fewer values than that",
                hint="copy or export it again",
            ) from error


def _load(path: Path, files: Sequence[Path]) -> ir.Model:
    """Load a file, and what of its data fits into memory: the rest is mapped when it is asked for."""
    model = ir.load(path)
    _load_attributes(model)
    if sum(file.stat().st_size for file in files) <= storing.LARGEST_BYTES:
        # Prepared models leave this folder, so that their data must come with them.
        return ir.external_data.load_to_model(model)
    for graph in every_graph(model.graph):
        for value in graph.initializers.values():
            with mapped(value) as array:  # Where that cannot be done, now is the time to say so.
                small = array.nbytes < storing.SMALLEST_EXTERNAL
            if small and isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = _loaded(value.const_value)
    return model


def _load_attributes(model: ir.Model) -> None:
    for node in every_node(model.graph):
        for name, attribute in list(node.attributes.items()):
            if isinstance(attribute.value, ir.ExternalTensor):
                node.attributes[name] = ir.AttrTensor(name, _loaded(attribute.value))


def _loaded(tensor: ir.ExternalTensor) -> ir.TensorProtocol:
    return ir.external_data.convert_tensors_from_external([tensor])[0]


def input_specs(model: ir.Model) -> tuple[TensorSpec, ...]:
    """Return the specs of the graph's inputs that are not initializers: axes of samples, rows of tables."""
    values = [value for value in model.graph.inputs if value.name not in model.graph.initializers]
    longest = longest_sequence(model.graph)
    return with_axes([_indexed(value, longest) for value in values], noted_axes(model))


def _indexed(value: ir.Value, longest: int | None) -> TensorSpec:
    spec = value_spec(value)
    rows = rows_of_tables(value) if spec.dtype.kind in "iu" else None
    if rows is None:
        return spec
    return IndexSpec(spec.name, spec.dtype, spec.shape, rows=rows, longest=longest)


def require_tensor_inputs(model: ir.Model, what: str) -> None:
    """Check that data can be given to each input."""
    for value in model.graph.inputs:
        if isinstance(value.type, ir.SequenceType | ir.OptionalType):
            kind = "a sequence of tensors" if isinstance(value.type, ir.SequenceType) else "optional"
            raise ModelInputError(
                f"the input '{value.name}' of '{what}' is {kind}, and data have one array for each input",
                hint="export the model with inputs that are tensors",
            )


def _require_ranks(proto: onnx.ModelProto, path: Path) -> None:
    """Refuse an input whose rank the file does not say, which the checker does not name."""
    constants = {item.name for item in proto.graph.initializer}
    for value in proto.graph.input:
        is_tensor = value.type.WhichOneof("value") == "tensor_type"
        if value.name in constants or not is_tensor or value.type.tensor_type.HasField("shape"):
            continue
        if is_cache(value.name):
            raise CacheInputError(
                f"the cache input '{value.name}' of model '{path.name}' has no shape",
                hint="export it with the sizes that are fixed, such as [batch, 9, past_length, 64]",
            )
        raise InvalidOnnxError(
            f"the input '{value.name}' of model '{path.name}' has no shape",
            hint="export it again with the rank of each input; sizes may be open",
        )


def _require_opset(proto: onnx.ModelProto, path: Path) -> None:
    opset = next((item.version for item in proto.opset_import if item.domain in ("", "ai.onnx")), None)
    if opset is None or opset < OLDEST_OPSET:
        found = "no opset" if opset is None else f"opset {opset}"
        raise InvalidOnnxError(
            f"model '{path.name}' has {found}, expected {OLDEST_OPSET} or later",
            hint="convert it with onnx.version_converter, or export it again with a newer opset",
        )
