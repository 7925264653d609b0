"""Sources that PyTorch loads: a module, an exported program, TorchScript."""

import inspect
import io
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch

from ptq_cli.core.errors import ModelInputError, first_line
from ptq_cli.core.tensors import Array, TensorSpec
from ptq_cli.models.index_range import INDEX_HINT, is_index_out_of_range
from ptq_cli.models.loading.export_failure import export_error, failing_layer
from ptq_cli.models.loading.signature import restore_signature
from ptq_cli.models.loading.source import Example, SourceFile
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

    @property
    def input_names(self) -> tuple[str, ...]:
        """Parameters of ``forward`` that have no default, or all where each has one."""
        parameters = [
            parameter
            for parameter in inspect.signature(self.module.forward).parameters.values()
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        ]
        required = [item.name for item in parameters if item.default is item.empty]
        if not parameters:
            raise ModelInputError(
                f"forward of '{self.file.path.name}' names no inputs",
                hint="give it named parameters, as in: def forward(self, x)",
            )
        return tuple(required or [item.name for item in parameters])

    def to_onnx(self, example: Example) -> ir.Model:
        """Export with a dynamic batch axis, or with a fixed one where the model does not allow it.

        Raises:
            ExportError: neither works; it names the layer.
        """
        arguments = to_tensors(example)
        # torch.export takes a size of 1 for a constant.
        several = {
            name: torch.cat([tensor, tensor]) if _has_one(tensor) else tensor
            for name, tensor in arguments.items()
        }
        try:
            with quiet_exporter(), one_thread(), torch.no_grad():
                return _program_to_onnx(self._export(several, dynamic=True), list(arguments))
        except Exception:  # noqa: BLE001 - the second attempt reports what is wrong with the model itself
            single = {name: tensor[:1] if tensor.ndim else tensor for name, tensor in arguments.items()}
        try:
            with quiet_exporter(), one_thread(), torch.no_grad():
                return _program_to_onnx(self._export(single, dynamic=False), list(single))
        except Exception as error:
            raise export_error(error, self.module, self.file.path.name) from error

    def run(self, example: Example) -> list[Array]:
        """Return the module's outputs, flattened in order.

        Raises:
            ModelInputError: the module raised on these inputs; the message names the layer.
        """
        try:
            with one_thread(), torch.no_grad():
                return to_arrays(self.module(**to_tensors(example)))
        except Exception as error:
            raise _refused_input(error, self.module, example, self.file.path.name) from error

    def _export(self, arguments: dict[str, torch.Tensor], *, dynamic: bool) -> torch.export.ExportedProgram:
        batch = torch.export.Dim("batch")  # One object: every input has the same batch.
        shapes = (
            {name: {0: batch} if tensor.ndim else {} for name, tensor in arguments.items()}
            if dynamic
            else None
        )
        return torch.export.export(self.module, (), arguments, dynamic_shapes=shapes, strict=False)


@dataclass(frozen=True)
class ProgramSource:
    """A ``torch.export`` archive."""

    file: SourceFile
    program: torch.export.ExportedProgram

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the program's user inputs."""
        return tuple(spec.name for spec in self.example_specs)

    @property
    def example_specs(self) -> tuple[TensorSpec, ...]:
        """Name, dtype and shape of each input; a symbolic size is None."""
        names = self.program.graph_signature.user_inputs
        nodes = {node.name: node for node in self.program.graph.nodes if node.op == "placeholder"}
        return tuple(_placeholder_spec(str(name), nodes[str(name)]) for name in names)

    def to_onnx(self, example: Example) -> ir.Model:  # noqa: ARG002 - the archive knows its own shapes
        """Export; the archive says itself which axes are dynamic.

        Raises:
            ExportError: an operator has no ONNX form; it names the layer.
        """
        try:
            with quiet_exporter(), one_thread(), torch.no_grad():
                return _program_to_onnx(self.program, self.input_names)
        except Exception as error:
            raise export_error(error, None, self.file.path.name) from error

    def run(self, example: Example) -> list[Array]:
        """Return the program's outputs, flattened in order.

        Raises:
            ModelInputError: the program raised on these inputs.
        """
        tensors = to_tensors(example)
        try:
            with one_thread(), torch.no_grad():
                return to_arrays(self.program.module()(*(tensors[name] for name in self.input_names)))
        except Exception as error:
            raise _refused_input(error, None, example, self.file.path.name) from error


@dataclass(frozen=True)
class TorchScriptSource:
    """A TorchScript module."""

    file: SourceFile
    module: torch.jit.ScriptModule
    example_specs: tuple[TensorSpec, ...] = ()

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the arguments of ``forward``."""
        return tuple(argument.name for argument in typing.cast(Any, self.module.forward).schema.arguments[1:])

    def to_onnx(self, example: Example) -> ir.Model:
        """Export with the TorchScript exporter, which alone reads TorchScript.

        Raises:
            ExportError: it cannot; it names the operator.
        """
        tensors = [to_tensors(example)[name] for name in self.input_names]
        try:
            return self._export(tensors, {name: {0: "batch"} for name in self.input_names})
        except Exception:  # noqa: BLE001 - the second attempt reports what is wrong with the model itself
            single = [tensor[:1] for tensor in tensors]
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
                return to_arrays(self.module(*(tensors[name] for name in self.input_names)))
        except RuntimeError as error:
            raise _refused_input(error, None, example, self.file.path.name) from error

    def _export(self, tensors: list[torch.Tensor], dynamic: dict[str, dict[int, str]]) -> ir.Model:
        buffer = io.BytesIO()
        with quiet_exporter(), one_thread(), torch.no_grad():
            torch.onnx.export(
                self.module,
                tuple(tensors),
                typing.cast(Any, buffer),  # a stream is right for dynamo=False; the stub says a path
                dynamo=False,
                opset_version=EXPORT_OPSET,
                input_names=list(self.input_names),
                dynamic_axes=dynamic,
            )
        return ir.from_proto(onnx.load_from_string(buffer.getvalue()))


def to_tensors(example: Example) -> dict[str, torch.Tensor]:
    """Return the arrays as tensors, which own their memory.

    Raises:
        ModelInputError: PyTorch has no such dtype.
    """
    try:
        return {name: torch.from_numpy(np.array(array)) for name, array in example.items()}
    except TypeError as error:
        raise ModelInputError(
            f"PyTorch does not have the dtype of an input: {error}", hint="convert it"
        ) from error


def to_arrays(value: object) -> list[Array]:
    """Return the tensors of a module's result, however nested, in the exporter's order.

    Edge case:
        numpy has no bfloat16; such a tensor becomes the float32 of the same values.

    Example:
        >>> [array.shape for array in to_arrays((torch.zeros(2), {"a": torch.zeros(3)}))]
        [(2,), (3,)]
    """
    leaves: Sequence[object] = torch.utils._pytree.tree_leaves(value)
    tensors = (leaf.detach().cpu() for leaf in leaves if isinstance(leaf, torch.Tensor))
    return [(tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy() for tensor in tensors]


def _program_to_onnx(program: torch.export.ExportedProgram, inputs: Sequence[str]) -> ir.Model:
    exported = torch.onnx.export(program, dynamo=True, opset_version=EXPORT_OPSET, verbose=False)
    if exported is None:
        raise RuntimeError("torch.onnx.export returned nothing")
    restore_signature(exported.model, program, inputs)
    return exported.model


def _refused_input(
    error: Exception, module: torch.nn.Module | None, example: Example, what: str
) -> ModelInputError:
    layer = failing_layer(error, module)
    where = f" at layer '{layer}'" if layer else ""
    found = ", ".join(str(TensorSpec(name, array.dtype, array.shape)) for name, array in example.items())
    fit = "check that shape, dtype and layout of the data are those of the model's training data"
    return ModelInputError(
        f"'{what}' does not accept the first batch of the data ({found}): {type(error).__name__}{where}: "
        f"{first_line(error)}",
        hint=INDEX_HINT if is_index_out_of_range(str(error)) else fit,
    )


def _has_one(tensor: torch.Tensor) -> bool:
    return tensor.ndim > 0 and tensor.shape[0] == 1


def _placeholder_spec(name: str, node: torch.fx.Node) -> TensorSpec:
    tensor = node.meta["val"]
    shape = tuple(size if isinstance(size, int) else None for size in tensor.shape)
    dtype = np.dtype(str(tensor.dtype).removeprefix("torch."))
    return TensorSpec(name, dtype, shape)
