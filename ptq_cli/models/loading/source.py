"""A loaded model, before it is ONNX: what every kind of source can do."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import onnx_ir as ir

from ptq_cli.core.tensors import Array, TensorSpec
from ptq_cli.models.loading.detect import ModelKind

Example = Mapping[str, Array]
"""A few samples by input name; the first axis of each array is the batch."""


Axes = Mapping[str, int | None]
NO_AXES: Axes = MappingProxyType({})


@dataclass(frozen=True)
class SourceFile:
    """Where a model came from.

    Attributes:
        path: the file.
        kind: what it holds.
        sha256: of the file's bytes; of an ONNX file with external data, of the main file.
    """

    path: Path
    kind: ModelKind
    sha256: str


class ModelSource(Protocol):
    """A model that can become ONNX.

    Attributes:
        file: where it came from.
        input_names: names of its inputs, in order.
        example_specs: what the inputs look like, where the source itself knows; otherwise empty.
        fixed: arrays of the inputs that are fixed to a constant, by name; they are not among the inputs.
    """

    @property
    def file(self) -> SourceFile:
        """Where it came from."""

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of its inputs, in order."""

    @property
    def example_specs(self) -> tuple[TensorSpec, ...]:
        """What the inputs look like, where the source itself knows; otherwise empty."""

    @property
    def fixed(self) -> Mapping[str, Array]:
        """Arrays of the inputs that are fixed to a constant, by name; they are not among the inputs."""

    def to_onnx(self, example: Example, axes: Axes = NO_AXES) -> ir.Model:
        """Return the model as ONNX, with a dynamic batch axis where the model allows it.

        Args:
            example: samples.
            axes: where the inputs have them, by name; on the first axis if one is not named.
        """

    def run(self, example: Example) -> list[Array] | None:
        """Return what the source's own framework computes, or None where ONNX is the source."""
