"""A source that is a module of PyTorch, with the classes that it was written in."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from ptq_cli.core.errors import ModelInputError
from ptq_cli.core.tensors import Array, TensorSpec
from ptq_cli.models.loading.pytorch.export_failure import export_error
from ptq_cli.models.loading.pytorch.program_export import program_to_onnx
from ptq_cli.models.loading.pytorch.torch_values import (
    as_argument,
    batch_axes,
    fix_exported,
    one_sample,
    refused_input,
    require_parameters,
    to_arrays,
    to_tensors,
)
from ptq_cli.models.loading.source import NO_AXES, Axes, Example, SourceFile
from ptq_cli.models.quiet import quiet_exporter
from ptq_cli.models.threads import one_thread


@dataclass(frozen=True)
class ModuleSource:
    """A ``torch.nn.Module`` in evaluation mode."""

    file: SourceFile
    module: torch.nn.Module
    example_specs: tuple[TensorSpec, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fixed(self) -> dict[str, Array]:
        """Arrays of the parameters of ``forward`` that are fixed."""
        return {name: np.asarray(value) for name, value in self.values.items()}

    @property
    def input_names(self) -> tuple[str, ...]:
        """Parameters of ``forward`` that have no default and are not fixed, or all where each has one.

        Raises:
            ModelInputError: it has none.
            FixedInputError: it has none of a name that is fixed.
        """
        parameters = self._parameters()
        if not parameters:
            raise ModelInputError(
                f"forward of '{self.file.path.name}' names no inputs",
                hint="give it named parameters, as in: def forward(self, x)",
            )
        require_parameters(self.values, list(parameters), self.file.path.name)
        free = [item for name, item in parameters.items() if name not in self.values]
        required = [item.name for item in free if item.default is item.empty]
        return tuple(required or [item.name for item in free])

    def _parameters(self) -> dict[str, inspect.Parameter]:
        return {
            name: parameter
            for name, parameter in inspect.signature(self.module.forward).parameters.items()
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        }

    def _constants(self) -> dict[str, Any]:
        parameters = self._parameters()
        return {
            name: as_argument(
                value, tensor=parameters[name].annotation in (torch.Tensor, "torch.Tensor", "Tensor")
            )
            for name, value in self.values.items()
        }

    def to_onnx(self, example: Example, axes: Axes = NO_AXES) -> ir.Model:
        """Export with a dynamic batch axis, or with a fixed one where the model does not allow it.

        Raises:
            ExportError: neither works; it names the layer.
        """
        arguments = to_tensors(example)
        # torch.export takes a size of 1 for a constant.
        several = {
            name: torch.cat([tensor, tensor], axis)
            if axis is not None and tensor.shape[axis] == 1
            else tensor
            for (name, tensor), axis in zip(
                arguments.items(), batch_axes(arguments, axes).values(), strict=True
            )
        }
        try:
            with quiet_exporter(), one_thread(), torch.no_grad():
                return self._to_onnx(several, batch_axes(several, axes))
        except Exception:  # noqa: BLE001 - the second attempt reports what is wrong with the model itself
            single = one_sample(arguments, axes)
        try:
            with quiet_exporter(), one_thread(), torch.no_grad():
                return self._to_onnx(single, None)
        except Exception as error:
            raise export_error(error, self.module, self.file.path.name) from error

    def run(self, example: Example) -> list[Array]:
        """Return the module's outputs, flattened in order.

        Raises:
            ModelInputError: the module raised on these inputs; the message names the layer.
        """
        try:
            with one_thread(), torch.no_grad():
                return to_arrays(self.module(**to_tensors(example), **self._constants()))
        except Exception as error:
            raise refused_input(error, self.module, example, self.file.path.name) from error

    def _to_onnx(self, arguments: dict[str, torch.Tensor], axes: Axes | None) -> ir.Model:
        batch = torch.export.Dim("batch")  # One object: every input has the same batch.
        constants = self._constants()
        shapes: dict[str, Any] = {
            name: {axis: batch} if axis is not None else {} for name, axis in (axes or {}).items()
        }
        shapes |= dict.fromkeys(constants)
        program = torch.export.export(
            self.module,
            (),
            {**arguments, **constants},
            dynamic_shapes=shapes if axes is not None else None,
            strict=False,
        )
        tensors = [name for name, value in constants.items() if isinstance(value, torch.Tensor)]
        model = program_to_onnx(program, [*arguments, *tensors])
        return fix_exported(model, self.values, self.file.path.name)
