"""A loaded model, before it is ONNX: what every kind of source can do."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Protocol

import onnx_ir as ir

from ptq_cli.core.tensors import Array, TensorSpec
from ptq_cli.models.loading.detect import ModelKind

Example = Mapping[str, Array]  # A few samples by input name; the first axis of each array is the batch
Axes = Mapping[str, int | None]
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

    def to_onnx(self, example: Example, axes: Axes = NO_AXES) -> ir.Model:
        """Return the model as ONNX, with a dynamic batch axis, the first or that of ``axes``, if it can."""

    def run(self, example: Example) -> list[Array] | None:
        """Return the outputs of the source's own framework, or None where ONNX is the source."""
