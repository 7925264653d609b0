"""A source that torch.jit has saved."""

import io
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import onnx
import onnx_ir as ir
import torch

from ptq_cli.core.tensors import Array, TensorSpec
from ptq_cli.models.loading.module_source import (
    EXPORT_OPSET,
    as_argument,
    batch_axes,
    chosen_inputs,
    export_error,
    fix_exported,
    one_sample,
    refused_input,
    require_parameters,
    to_arrays,
    to_tensors,
)
from ptq_cli.models.loading.source import NO_AXES, Axes, Example, SourceFile
from ptq_cli.models.parity import quiet_exporter
from ptq_cli.models.threads import one_thread


@dataclass(frozen=True)
class TorchScriptSource:
    """A TorchScript module."""

    file: SourceFile
    module: torch.jit.ScriptModule
    example_specs: tuple[TensorSpec, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    notes: tuple[str, ...] = field(default=(), kw_only=True)
    named: frozenset[str] = field(default=frozenset(), kw_only=True)

    @property
    def fixed(self) -> dict[str, Array]:
        """Arrays of the arguments that are fixed."""
        return {name: np.asarray(value) for name, value in self.values.items()}

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the arguments of ``forward`` that are not fixed, and have no default or are named."""
        required = {item.name: not item.has_default_value() for item in self._arguments()}
        require_parameters(self.values, list(required), self.file.path.name)
        free = {name: item for name, item in required.items() if name not in self.values}
        return chosen_inputs(free, self.named)

    def with_optional(self, named: Collection[str]) -> Self:
        """Return the source with those of its optional inputs that are named."""
        return replace(self, named=frozenset(named))

    def _arguments(self) -> list[Any]:
        return list(typing.cast(Any, self.module.forward).schema.arguments[1:])

    def _call_arguments(self, tensors: Mapping[str, torch.Tensor]) -> list[Any]:
        return [
            as_argument(self.values[item.name], tensor=str(item.type) == "Tensor")
            if item.name in self.values
            else tensors.get(item.name, item.default_value)
            for item in self._arguments()
        ]

    def _without_optional(self, given: Mapping[str, Any]) -> tuple[torch.jit.ScriptModule, dict[str, Any]]:
        """Return what to export, and its arguments: ONNX has no None, and few runtimes take its Optional."""
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

    def to_onnx(self, example: Example, axes: Axes = NO_AXES) -> ir.Model:
        """Export with the TorchScript exporter, which alone reads TorchScript."""
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
        """Return the module's outputs, flattened in order."""
        tensors = to_tensors(example)
        try:
            with one_thread(), torch.no_grad():
                return to_arrays(self.module(*self._call_arguments(tensors)))
        except RuntimeError as error:
            raise refused_input(error, None, example, self.file.path.name) from error

    def _export(self, tensors: Mapping[str, torch.Tensor], dynamic: dict[str, dict[int, str]]) -> ir.Model:
        arguments = zip(self._arguments(), self._call_arguments(tensors), strict=True)
        given = {item.name: value for item, value in arguments if value is not None}
        buffer = io.BytesIO()
        with quiet_exporter(), one_thread(), torch.no_grad():
            module, given = self._without_optional(given)
            torch.onnx.export(
                module,
                tuple(given.values()),
                typing.cast(Any, buffer),  # a stream is right for dynamo=False; the stub says a path
                dynamo=False,
                opset_version=EXPORT_OPSET,
                input_names=list(given),
                dynamic_axes=dynamic,
            )
        model = ir.from_proto(onnx.load_from_string(buffer.getvalue()))
        return fix_exported(model, self.values, self.file.path.name)
