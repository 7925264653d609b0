"""Sources that PyTorch loads: a module, an exported program, TorchScript."""

import inspect
import io
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch

from ptq_cli.core.errors import ModelInputError
from ptq_cli.core.tensors import Array, TensorSpec
from ptq_cli.models.inputs.fixed_inputs import fixed_value
from ptq_cli.models.loading.pytorch.export_failure import export_error
from ptq_cli.models.loading.pytorch.signature import restore_signature
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

EXPORT_OPSET = 20
"""Gelu came with 20; QuantizeLinear with an axis needs 13."""


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
        model = _program_to_onnx(program, [*arguments, *tensors])
        return fix_exported(model, self.values, self.file.path.name)


@dataclass(frozen=True)
class ProgramSource:
    """A ``torch.export`` archive."""

    file: SourceFile
    program: torch.export.ExportedProgram
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the program's user inputs that are not fixed."""
        return tuple(spec.name for spec in self.example_specs)

    @property
    def example_specs(self) -> tuple[TensorSpec, ...]:
        """Name, dtype and shape of each input that is not fixed; a symbolic size is None.

        Raises:
            FixedInputError: there is no input of a name that is fixed.
        """
        specs = self._specs()
        require_parameters(self.values, [spec.name for spec in specs], self.file.path.name)
        return tuple(spec for spec in specs if spec.name not in self.values)

    @property
    def fixed(self) -> dict[str, Array]:
        """Arrays of the inputs that are fixed.

        Raises:
            FixedInputError: a value does not fit the input.
        """
        specs = {spec.name: spec for spec in self._specs()}
        return {
            name: fixed_value(value, specs[name], self.file.path.name) for name, value in self.values.items()
        }

    def _specs(self) -> tuple[TensorSpec, ...]:
        names = self.program.graph_signature.user_inputs
        nodes = {node.name: node for node in self.program.graph.nodes if node.op == "placeholder"}
        return tuple(_placeholder_spec(str(name), nodes[str(name)]) for name in names)

    def to_onnx(
        self,
        example: Example,  # noqa: ARG002 - the archive knows its own shapes
        axes: Axes = NO_AXES,  # noqa: ARG002
    ) -> ir.Model:
        """Export; the archive says itself which axes are dynamic.

        Raises:
            ExportError: an operator has no ONNX form; it names the layer.
        """
        try:
            with quiet_exporter(), one_thread(), torch.no_grad():
                model = _program_to_onnx(self.program, [spec.name for spec in self._specs()])
                return fix_exported(model, self.values, self.file.path.name)
        except Exception as error:
            raise export_error(error, None, self.file.path.name) from error

    def run(self, example: Example) -> list[Array]:
        """Return the program's outputs, flattened in order.

        Raises:
            ModelInputError: the program raised on these inputs.
        """
        tensors = to_tensors({**example, **self.fixed})
        try:
            with one_thread(), torch.no_grad():
                flat = [tensors[spec.name] for spec in self._specs()]
                # It was exported with arguments by position, by name, or nested, and is called likewise.
                arguments, named = torch.utils._pytree.tree_unflatten(flat, self.program.call_spec.in_spec)
                return to_arrays(self.program.module()(*arguments, **named))
        except Exception as error:
            raise refused_input(error, None, example, self.file.path.name) from error


@dataclass(frozen=True)
class TorchScriptSource:
    """A TorchScript module."""

    file: SourceFile
    module: torch.jit.ScriptModule
    example_specs: tuple[TensorSpec, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fixed(self) -> dict[str, Array]:
        """Arrays of the arguments that are fixed."""
        return {name: np.asarray(value) for name, value in self.values.items()}

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the arguments of ``forward`` that are not fixed.

        Raises:
            FixedInputError: there is no argument of a name that is fixed.
        """
        names = [argument.name for argument in self._arguments()]
        require_parameters(self.values, names, self.file.path.name)
        return tuple(name for name in names if name not in self.values)

    def _arguments(self) -> list[Any]:
        return list(typing.cast(Any, self.module.forward).schema.arguments[1:])

    def _call_arguments(self, tensors: Mapping[str, torch.Tensor]) -> list[Any]:
        return [
            as_argument(self.values[item.name], tensor=str(item.type) == "Tensor")
            if item.name in self.values
            else tensors[item.name]
            for item in self._arguments()
        ]

    def to_onnx(self, example: Example, axes: Axes = NO_AXES) -> ir.Model:
        """Export with the TorchScript exporter, which alone reads TorchScript.

        Raises:
            ExportError: it cannot; it names the operator.
        """
        tensors = to_tensors(example)
        try:
            found = batch_axes(tensors, axes)
            return self._export(
                tensors, {name: {axis: "batch"} for name, axis in found.items() if axis is not None}
            )
        except Exception:  # noqa: BLE001 - the second attempt reports what is wrong with the model itself
            single = one_sample(tensors, axes)
        try:
            return self._export(single, {})
        except Exception as error:
            raise export_error(error, None, self.file.path.name) from error

    def run(self, example: Example) -> list[Array]:
        """Return the module's outputs, flattened in order.

        Raises:
            ModelInputError: the module raised on these inputs.
        """
        tensors = to_tensors(example)
        try:
            with one_thread(), torch.no_grad():
                return to_arrays(self.module(*self._call_arguments(tensors)))
        except RuntimeError as error:
            raise refused_input(error, None, example, self.file.path.name) from error

    def _export(self, tensors: Mapping[str, torch.Tensor], dynamic: dict[str, dict[int, str]]) -> ir.Model:
        arguments = self._call_arguments(tensors)
        names = [item.name for item in self._arguments()]
        buffer = io.BytesIO()
        with quiet_exporter(), one_thread(), torch.no_grad():
            torch.onnx.export(
                self.module,
                tuple(arguments),
                typing.cast(Any, buffer),  # a stream is right for dynamo=False; the stub says a path
                dynamo=False,
                opset_version=EXPORT_OPSET,
                input_names=names,
                dynamic_axes=dynamic,
            )
        model = ir.from_proto(onnx.load_from_string(buffer.getvalue()))
        return fix_exported(model, self.values, self.file.path.name)


def _program_to_onnx(program: torch.export.ExportedProgram, inputs: Sequence[str]) -> ir.Model:
    exported = torch.onnx.export(program, dynamo=True, opset_version=EXPORT_OPSET, verbose=False)
    if exported is None:
        raise RuntimeError("torch.onnx.export returned nothing")
    restore_signature(exported.model, program, inputs)
    return exported.model


def _placeholder_spec(name: str, node: torch.fx.Node) -> TensorSpec:
    tensor = node.meta["val"]
    shape = tuple(size if isinstance(size, int) else None for size in tensor.shape)
    dtype = np.dtype(str(tensor.dtype).removeprefix("torch."))
    return TensorSpec(name, dtype, shape)
