"""Models that PyTorch saved: a module with its classes, a torch.export archive, TorchScript."""

import inspect
import io
import typing
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import onnx
import onnx_ir as ir
import torch
from torch.export.graph_signature import ConstantArgument, InputKind

from ptq_cli.core.errors import ModelInputError
from ptq_cli.core.tensors import Array, TensorSpec
from ptq_cli.models.batch_axes import Axes
from ptq_cli.models.fixed_inputs import fixed_value
from ptq_cli.models.loading.source import NO_AXES, ExampleInputs, SourceFile
from ptq_cli.models.loading.torch_export import (
    EXPORT_OPSET,
    as_argument,
    batch_axes,
    chosen_inputs,
    export_error,
    fix_exported,
    one_sample,
    program_to_onnx,
    refused_input,
    require_parameters,
    to_arrays,
    to_tensors,
)
from ptq_cli.models.quiet_export import one_thread, quiet_exporter


@contextmanager
def _quiet() -> Iterator[None]:
    with quiet_exporter(), one_thread(), torch.no_grad():
        yield


@dataclass(frozen=True)
class _CalledSource(ABC):
    """A module that is called by the names of the parameters of its ``forward``."""

    file: SourceFile
    module: Any
    example_specs: tuple[TensorSpec, ...] = field(default=(), init=False)
    values: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    notes: tuple[str, ...] = field(default=(), kw_only=True)
    named: frozenset[str] = field(default=frozenset(), kw_only=True)

    @property
    def fixed(self) -> dict[str, Array]:
        """Arrays of the parameters of ``forward`` that are fixed."""
        return {name: np.asarray(value) for name, value in self.values.items()}

    @property
    def input_names(self) -> tuple[str, ...]:
        """Parameters of ``forward`` that are not fixed, and have no default or are named.

        Where that is none: the first for a sole array of another name, or else all.
        """
        required = self._required()
        require_parameters(self.values, list(required), self.file.path.name)
        free = {name: item for name, item in required.items() if name not in self.values}
        return chosen_inputs(free, self.named)

    def with_optional(self, named: Collection[str]) -> Self:
        """Return the source with those of its optional inputs that are named."""
        return replace(self, named=frozenset(named))

    def to_onnx(self, example: ExampleInputs, axes: Axes = NO_AXES) -> ir.Model:
        """Export with a dynamic batch axis, or with a fixed one where the model does not allow it."""
        tensors = to_tensors(example)
        try:
            with _quiet():
                return self._exported(tensors, batch_axes(tensors, axes))
        except Exception:  # noqa: BLE001 - the second attempt reports what is wrong with the model itself
            single = one_sample(tensors, axes)
        try:
            with _quiet():
                return self._exported(single, None)
        except Exception as error:
            raise export_error(error, self._eager, self.file.path.name) from error

    @property
    def _eager(self) -> torch.nn.Module | None:
        """The module whose layers a traceback shows."""
        return None

    @abstractmethod
    def _required(self) -> dict[str, bool]:
        """Return whether each parameter of ``forward`` has no default."""

    @abstractmethod
    def _exported(self, tensors: dict[str, torch.Tensor], axes: Axes | None) -> ir.Model:
        """Export with dynamic axes of samples, or none."""


class ModuleSource(_CalledSource):
    """A ``torch.nn.Module`` in evaluation mode."""

    @property
    def _eager(self) -> torch.nn.Module | None:
        found: torch.nn.Module = self.module
        return found

    def _parameters(self) -> dict[str, inspect.Parameter]:
        return {
            name: parameter
            for name, parameter in inspect.signature(self.module.forward).parameters.items()
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        }

    def _required(self) -> dict[str, bool]:
        parameters = self._parameters()
        if not parameters:
            raise ModelInputError(
                f"forward of '{self.file.path.name}' names no inputs",
                hint="give it named parameters, as in: def forward(self, x)",
            )
        return {name: item.default is item.empty for name, item in parameters.items()}

    def _constants(self) -> dict[str, Any]:
        parameters, kinds = self._parameters(), (torch.Tensor, "torch.Tensor", "Tensor")
        return {
            name: as_argument(value, tensor=parameters[name].annotation in kinds)
            for name, value in self.values.items()
        }

    def run(self, example: ExampleInputs) -> list[Array]:
        """Return the module's outputs, flattened in order."""
        try:
            with one_thread(), torch.no_grad():
                return to_arrays(self.module(**to_tensors(example), **self._constants()))
        except Exception as error:
            raise refused_input(error, self.module, example, self.file.path.name) from error

    def _exported(self, tensors: dict[str, torch.Tensor], axes: Axes | None) -> ir.Model:
        # torch.export takes a size of 1 for a constant.
        dynamic = {name: axis for name, axis in (axes or {}).items() if axis is not None}
        doubled = {
            name: torch.cat([tensors[name]] * 2, axis)
            for name, axis in dynamic.items()
            if tensors[name].shape[axis] == 1
        }
        batch = torch.export.Dim("batch")  # One object: every input has the same batch.
        constants = self._constants()
        shapes: dict[str, Any] = {name: {dynamic[name]: batch} if name in dynamic else {} for name in tensors}
        program = torch.export.export(
            self.module,
            (),
            {**tensors, **doubled, **constants},
            dynamic_shapes={**shapes, **dict.fromkeys(constants)} if axes is not None else None,
            strict=False,
        )
        fixed = [name for name, value in constants.items() if isinstance(value, torch.Tensor)]
        return fix_exported(program_to_onnx(program, [*tensors, *fixed]), self.values, self.file.path.name)


class TorchScriptSource(_CalledSource):
    """A TorchScript module, which the TorchScript exporter alone reads."""

    def _arguments(self) -> list[Any]:
        return list(self.module.forward.schema.arguments[1:])

    def _required(self) -> dict[str, bool]:
        return {item.name: not item.has_default_value() for item in self._arguments()}

    def _call_arguments(self, tensors: Mapping[str, torch.Tensor]) -> list[Any]:
        return [
            as_argument(self.values[item.name], tensor=str(item.type) == "Tensor")
            if item.name in self.values
            else tensors.get(item.name, item.default_value)
            for item in self._arguments()
        ]

    def _without_optional(self, given: Mapping[str, Any]) -> tuple[torch.jit.ScriptModule, dict[str, Any]]:
        """Module to export and its arguments, without None: few runtimes take ONNX's Optional."""
        if not any(isinstance(item.type, torch.OptionalType) for item in self._arguments()):
            return self.module, dict(given)
        tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
        constants = {name: value for name, value in given.items() if name not in tensors}

        class Called(torch.nn.Module):
            def __init__(self, module: torch.jit.ScriptModule) -> None:
                super().__init__()
                self.module = module

            def forward(self, *arguments: torch.Tensor) -> object:
                return self.module(**dict(zip(tensors, arguments, strict=True)), **constants)

        trace = typing.cast(Any, torch.jit.trace)
        return trace(Called(self.module), tuple(tensors.values()), check_trace=False), tensors

    def run(self, example: ExampleInputs) -> list[Array]:
        """Return the module's outputs, flattened in order."""
        tensors = to_tensors(example)
        try:
            with one_thread(), torch.no_grad():
                return to_arrays(self.module(*self._call_arguments(tensors)))
        except RuntimeError as error:
            raise refused_input(error, None, example, self.file.path.name) from error

    def _exported(self, tensors: dict[str, torch.Tensor], axes: Axes | None) -> ir.Model:
        arguments = zip(self._arguments(), self._call_arguments(tensors), strict=True)
        given = {item.name: value for item, value in arguments if value is not None}
        buffer = io.BytesIO()
        module, given = self._without_optional(given)
        torch.onnx.export(
            module,
            tuple(given.values()),
            typing.cast(Any, buffer),  # a stream is right for dynamo=False; the stub says a path
            dynamo=False,
            opset_version=EXPORT_OPSET,
            input_names=list(given),
            dynamic_axes={name: {axis: "batch"} for name, axis in (axes or {}).items() if axis is not None},
        )
        model = ir.from_proto(onnx.load_from_string(buffer.getvalue()))
        return fix_exported(model, self.values, self.file.path.name)


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
        """Arguments of the export: tensors by name, and constants such as None."""
        specs = self.program.graph_signature.input_specs
        return [spec.arg for spec in specs if spec.kind == InputKind.USER_INPUT]

    def with_optional(self, named: Collection[str]) -> Self:  # noqa: ARG002 - it has none
        """Return the source itself."""
        return self

    def to_onnx(self, example: ExampleInputs, axes: Axes = NO_AXES) -> ir.Model:  # noqa: ARG002 - it knows its shapes
        """Export; the archive says itself which axes are dynamic."""
        try:
            with _quiet():
                model = program_to_onnx(self.program, [spec.name for spec in self._specs()])
                return fix_exported(model, self.values, self.file.path.name)
        except Exception as error:
            raise export_error(error, None, self.file.path.name) from error

    def run(self, example: ExampleInputs) -> list[Array]:
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
