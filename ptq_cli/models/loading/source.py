"""A loaded model before it is ONNX and its kind, told by its content."""

import codecs
import enum
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Protocol

import onnx_ir as ir

from ptq_cli.core.errors import ModelFolderError, ModelFormatError
from ptq_cli.core.read_files import is_folder, require_file, require_name
from ptq_cli.core.tensors import Array, TensorSpec
from ptq_cli.models.batch_axes import Axes

ZIP_MAGIC = b"PK\x03\x04"
PICKLE_PROTOCOLS = tuple(bytes([0x80, protocol]) for protocol in range(2, 6))
SAFETENSORS_HEADER_LIMIT = 100_000_000
KNOWN_KINDS = "state dict, .pt2, TorchScript, pickled module, safetensors or ONNX"


class ModelKind(enum.Enum):
    """The kinds of model files. ``CHECKPOINT`` is a state dict or a pickled module; only loading tells."""

    ONNX = "ONNX"
    EXPORTED_PROGRAM = "torch.export archive"
    TORCHSCRIPT = "TorchScript"
    CHECKPOINT = "PyTorch checkpoint"
    SAFETENSORS = "safetensors"
    HUB = "model of transformers"


HUB_CONFIG = "config.json"
_HUB_WEIGHTS = ("model.safetensors", "model-*-of-*.safetensors")


def hub_weights(folder: Path) -> tuple[Path, ...]:
    """The weights of a folder of the hub that transformers reads; none where it has float ONNX files.

    Quantized ones below ``onnx``, which ptq may have made of these weights, do not count.
    """
    made = set(folder.glob("onnx/model_*.onnx"))
    others = {*folder.glob("*.onnx"), *folder.glob("onnx/*.onnx")} - made
    if others or not (folder / HUB_CONFIG).is_file():
        return ()
    return tuple(sorted(path for pattern in _HUB_WEIGHTS for path in folder.glob(pattern)))


def detect_kind(path: Path) -> ModelKind:
    """Return the kind of a model file.

    A file that is none of the known kinds by its first bytes may still be ONNX, whose protobuf has no magic
    number; it is read as ONNX if its first field is one that a ModelProto begins with.
    """
    if is_folder(path):
        if hub_weights(path):
            return ModelKind.HUB
        raise ModelFolderError(
            f"model '{path}' is a folder, and this command takes a single file",
            hint="name a file in it; ptq quantize, export --float, verify and evaluate take folders",
        )
    require_file(path, "model")
    require_name(path)
    with path.open("rb") as stream:
        head = stream.read(512)
    if not head:
        raise ModelFormatError(f"model '{path.name}' is empty", hint=f"expected: {KNOWN_KINDS}")
    if head.startswith(ZIP_MAGIC):
        return _kind_of_zip(path)
    if head.startswith(PICKLE_PROTOCOLS):
        return ModelKind.CHECKPOINT
    if _is_safetensors(head, path.stat().st_size):
        return ModelKind.SAFETENSORS
    if _is_text(head):
        raise ModelFormatError(f"model '{path.name}' is a text file", hint=f"expected: {KNOWN_KINDS}")
    # ModelProto writes ir_version (field 1, varint) first, or a length-delimited field from 2 to 8.
    if head[0] == 0x08 or head[0] in (0x12, 0x1A, 0x22, 0x32, 0x3A, 0x42):
        return ModelKind.ONNX
    raise ModelFormatError(f"model '{path.name}' has an unknown format", hint=f"expected: {KNOWN_KINDS}")


def _kind_of_zip(path: Path) -> ModelKind:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise ModelFormatError(
            f"model '{path.name}' is a truncated or damaged archive: {error}",
            hint="copy or download it again",
        ) from error
    # Every member lies below one folder named after the file when it was saved.
    inner = {name.partition("/")[2] for name in names}
    if "archive_format" in inner or "serialized_exported_program.json" in names:
        return ModelKind.EXPORTED_PROGRAM
    if "constants.pkl" in inner and any(name.startswith("code/") for name in inner):
        return ModelKind.TORCHSCRIPT
    if "data.pkl" in inner:
        return ModelKind.CHECKPOINT
    raise ModelFormatError(
        f"model '{path.name}' is a zip archive, but not of a model", hint=f"expected: {KNOWN_KINDS}"
    )


def _is_safetensors(head: bytes, size: int) -> bool:
    header = int.from_bytes(head[:8], "little")
    return head[8:9] == b"{" and 2 <= header <= min(size, SAFETENSORS_HEADER_LIMIT)


def _is_text(head: bytes) -> bool:
    head = head.removeprefix(codecs.BOM_UTF8)
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        # A multi-byte character cut off by the end of what was read is still text.
        text = head[: error.start].decode("utf-8") if error.start > len(head) - 4 else "\0"
    return all(character.isprintable() or character in "\t\n\r\f" for character in text)


ExampleInputs = Mapping[str, Array]  # A few samples by input name; the first axis of each array is the batch
NO_AXES: Axes = MappingProxyType({})


@dataclass(frozen=True)
class SourceFile:
    """Where a model came from."""

    path: Annotated[Path, "The file."]
    kind: Annotated[ModelKind, "What it holds."]
    sha256: Annotated[str, "Of the file's bytes; of an ONNX file with external data, of the main file."]


class ModelSource(Protocol):
    """A model that can become ONNX."""

    @property
    def file(self) -> SourceFile:
        """Where it came from."""

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of its inputs, in order: optional ones only if ``with_optional`` named them."""

    def with_optional(self, named: Collection[str]) -> "ModelSource":
        """Return the source with those of its optional inputs that are named."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user on how it was loaded, a sentence each."""

    @property
    def example_specs(self) -> tuple[TensorSpec, ...]:
        """Specs of the inputs, where the source itself knows them; otherwise empty."""

    @property
    def fixed(self) -> Mapping[str, Array]:
        """Arrays of the inputs that are fixed to a constant, by name; they are not among the inputs."""

    def to_onnx(self, example: ExampleInputs, axes: Axes = NO_AXES) -> ir.Model:
        """Return the model as ONNX, with a dynamic batch axis, the first or that of ``axes``, if it can."""

    def run(self, example: ExampleInputs) -> list[Array] | None:
        """Return the outputs of the source's own framework, or None where ONNX is the source."""
