"""ONNX files, external data included."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError, Message

from ptq_cli.core.errors import InvalidOnnxError, ModelFormatError, first_line
from ptq_cli.core.tensors import TensorSpec
from ptq_cli.models.opset import OLDEST_OPSET
from ptq_cli.models.source import Example, ModelFile


@dataclass(frozen=True)
class OnnxSource:
    """An ONNX model."""

    file: ModelFile
    model: ir.Model

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the graph's inputs that are no initializers."""
        return tuple(spec.name for spec in self.example_specs)

    @property
    def example_specs(self) -> tuple[TensorSpec, ...]:
        """Name, dtype and shape of each input."""
        return input_specs(self.model)

    def to_onnx(self, example: Example) -> ir.Model:  # noqa: ARG002 - it is ONNX already
        """Return the model."""
        return self.model

    def run(self, example: Example) -> None:  # noqa: ARG002 - there is nothing to compare with
        """Return None: ONNX is the source itself."""
        return


def load_onnx(path: Path) -> ir.Model:
    """Load and check an ONNX file.

    Raises:
        ModelFormatError: it is no ONNX, or damaged, or its external data is missing or outside its folder.
        InvalidOnnxError: it fails the checker, or its opset is older than 11.
    """
    try:
        proto = onnx.load(path, load_external_data=False)
    except (DecodeError, ValueError, RuntimeError) as error:
        raise ModelFormatError(
            f"model '{path.name}' is no ONNX file, or damaged", hint="copy or export it again"
        ) from error
    if not proto.HasField("graph"):
        raise ModelFormatError(f"model '{path.name}' holds no ONNX graph", hint="copy or export it again")
    if not _is_text(proto):
        raise ModelFormatError(
            f"model '{path.name}' is damaged: a name in it is no text", hint="copy or export it again"
        )
    _require_external_data(proto, path)
    _require_opset(proto, path)
    try:
        onnx.checker.check_model(str(path), full_check=True)
        # Prepared models leave this folder, so that their data must come with them.
        return ir.external_data.load_to_model(ir.load(path))
    except UnicodeDecodeError as error:
        raise ModelFormatError(
            f"model '{path.name}' is damaged: a name in it is no text", hint="copy or export it again"
        ) from error
    # The checker is C++ and raises RuntimeErrors of many kinds; onnx_ir raises what its own code meets.
    except Exception as error:
        raise InvalidOnnxError(
            f"model '{path.name}' fails the ONNX checker: {first_line(error)}", hint="export it again"
        ) from error


def input_specs(model: ir.Model) -> tuple[TensorSpec, ...]:
    """Return the specs of the graph's inputs that are no initializers."""
    return tuple(
        value_spec(value) for value in model.graph.inputs if value.name not in model.graph.initializers
    )


def value_spec(value: ir.Value) -> TensorSpec:
    """Return name, dtype and shape of a graph value; a symbolic or unknown size is None."""
    dtype = value.dtype.numpy() if value.dtype is not None else np.dtype(np.float32)
    sizes = value.shape if value.shape is not None else ()
    return TensorSpec(
        value.name or "", dtype, tuple(size if isinstance(size, int) else None for size in sizes)
    )


def external_files(path: Path) -> tuple[Path, ...]:
    """Return the files beside an ONNX file that hold data of its tensors; ``load_onnx`` took it before."""
    proto = onnx.load(path, load_external_data=False)
    names = {
        item.value
        for tensor in _all_tensors(proto)
        if tensor.data_location == onnx.TensorProto.EXTERNAL
        for item in tensor.external_data
        if item.key == "location"
    }
    return tuple(path.parent / name for name in sorted(names))


def _is_text(message: Message) -> bool:
    # Protobuf hands out a string that is no UTF-8 as bytes, and whoever meets it later does not expect them.
    for field, value in message.ListFields():
        items = [value] if isinstance(value, str | bytes | Message) else value
        if field.type == field.TYPE_STRING and any(isinstance(item, bytes) for item in items):
            return False
        if field.type == field.TYPE_MESSAGE and not all(_is_text(item) for item in items):
            return False
    return True


def _require_opset(proto: onnx.ModelProto, path: Path) -> None:
    opset = next((item.version for item in proto.opset_import if item.domain in ("", "ai.onnx")), None)
    if opset is None or opset < OLDEST_OPSET:
        found = "no opset" if opset is None else f"opset {opset}"
        raise InvalidOnnxError(
            f"model '{path.name}' has {found}, {OLDEST_OPSET} or later is wanted",
            hint="convert it with onnx.version_converter, or export it again with a newer opset",
        )


def _require_external_data(proto: onnx.ModelProto, path: Path) -> None:
    folder = path.parent.resolve()
    for tensor in _all_tensors(proto):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        location = next((item.value for item in tensor.external_data if item.key == "location"), "")
        target = (folder / location).resolve()
        if not target.is_relative_to(folder) or not location:
            raise ModelFormatError(
                f"model '{path.name}': the data of '{tensor.name}' lie outside its folder ({location!r})",
                hint="only external data beside the model are read",
            )
        if not target.is_file():
            raise ModelFormatError(
                f"model '{path.name}': the data file '{location}' of '{tensor.name}' is missing",
                hint="put it beside the model",
            )


def _all_tensors(proto: onnx.ModelProto) -> list[onnx.TensorProto]:
    from onnx.external_data_helper import _get_all_tensors

    return list(_get_all_tensors(proto))
