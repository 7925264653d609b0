"""A source that torch.export has saved."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import onnx_ir as ir
import torch
from torch.export.graph_signature import ConstantArgument, InputKind

from ptq_cli.core.tensors import Array, TensorSpec
from ptq_cli.models.batch_axes import fixed_value
from ptq_cli.models.loading.module_source import (
    export_error,
    fix_exported,
    program_to_onnx,
    refused_input,
    require_parameters,
    to_arrays,
    to_tensors,
)
from ptq_cli.models.loading.source import NO_AXES, Axes, Example, SourceFile
from ptq_cli.models.parity import quiet_exporter
from ptq_cli.models.threads import one_thread


@dataclass(frozen=True)
class ProgramSource:
    """A ``torch.export`` archive."""

    file: SourceFile
    program: torch.export.ExportedProgram
    values: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the program's user inputs that are not fixed."""
        return tuple(spec.name for spec in self.example_specs)

    @property
    def example_specs(self) -> tuple[TensorSpec, ...]:
        """Name, dtype and shape of each input that is not fixed; a symbolic size is None."""
        specs = self._specs()
        require_parameters(self.values, [spec.name for spec in specs], self.file.path.name)
        return tuple(spec for spec in specs if spec.name not in self.values)

    @property
    def fixed(self) -> dict[str, Array]:
        """Arrays of the inputs that are fixed."""
        specs = {spec.name: spec for spec in self._specs()}
        return {
            name: fixed_value(value, specs[name], self.file.path.name) for name, value in self.values.items()
        }

    def _specs(self) -> tuple[TensorSpec, ...]:
        nodes = {node.name: node for node in self.program.graph.nodes if node.op == "placeholder"}
        given = [item for item in self._arguments() if not isinstance(item, ConstantArgument)]
        return tuple(_placeholder_spec(item.name, nodes[item.name]) for item in given)

    def _arguments(self) -> list[Any]:
        """Return what the program was exported with: tensors by name, and constants such as None."""
        specs = self.program.graph_signature.input_specs
        return [spec.arg for spec in specs if spec.kind == InputKind.USER_INPUT]

    def with_optional(self, named: Collection[str]) -> Self:  # noqa: ARG002 - it has none
        """Return the source itself."""
        return self

    def to_onnx(
        self,
        example: Example,  # noqa: ARG002 - the archive knows its own shapes
        axes: Axes = NO_AXES,  # noqa: ARG002
    ) -> ir.Model:
        """Export; the archive says itself which axes are dynamic."""
        try:
            with quiet_exporter(), one_thread(), torch.no_grad():
                model = program_to_onnx(self.program, [spec.name for spec in self._specs()])
                return fix_exported(model, self.values, self.file.path.name)
        except Exception as error:
            raise export_error(error, None, self.file.path.name) from error

    def run(self, example: Example) -> list[Array]:
        """Return the program's outputs, flattened in order."""
        tensors = to_tensors({**example, **self.fixed})
        try:
            with one_thread(), torch.no_grad():
                flat = [
                    item.value if isinstance(item, ConstantArgument) else tensors[item.name]
                    for item in self._arguments()
                ]
                # It was exported with arguments by position, by name, or nested, and is called likewise.
                arguments, named = torch.utils._pytree.tree_unflatten(flat, self.program.call_spec.in_spec)
                return to_arrays(self.program.module()(*arguments, **named))
        except Exception as error:
            raise refused_input(error, None, example, self.file.path.name) from error


def _placeholder_spec(name: str, node: torch.fx.Node) -> TensorSpec:
    tensor = node.meta["val"]
    shape = tuple(size if isinstance(size, int) else None for size in tensor.shape)
    dtype = np.dtype(str(tensor.dtype).removeprefix("torch."))
    return TensorSpec(name, dtype, shape)
