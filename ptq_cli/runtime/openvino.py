"""OpenVINO as the runtime of a target. Its package is imported when the first model is opened."""

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from ptq_cli.core.errors import MissingRuntimeError, PtqError, RuntimeFailedError
from ptq_cli.core.tensors import Array
from ptq_cli.models.files.stored import serialize
from ptq_cli.models.graph_reading import every_node
from ptq_cli.models.pair_operators import is_pair_node
from ptq_cli.plan.target.rules import OPENVINO
from ptq_cli.runtime.engine import MARK, Engine, Kernel, KernelPlacement, Model, marked_graph

if TYPE_CHECKING:
    import openvino

DEVICE = "CPU"
_HINT = "pip install 'ptq-cli[openvino]'"
MOST_SHAPES = 4  # of inputs that a model is compiled for: up to a third faster
_SAID_LIMIT = 400
ON_ARM = "Convolution input precision should be single"  # OpenVINO 2026.4 on a Pad of integers
HINT_ON_ARM = "on ARM, OpenVINO cannot pad channels of integers: export with --target openvino"
HINT_OF_FAILURE = "check that OpenVINO supports the model's operators and this batch size"
NOT_LOADED, FAILED = "OpenVINO cannot load the model", "OpenVINO failed on a batch"
_Shapes = tuple[tuple[str, tuple[int, ...]], ...]
_INTEGERS = ("i8", "u8")
# What OpenVINO puts beside an operator under its name, and the operators that these are themselves
_AROUND = {
    "Const": (),
    "Convert": (),
    "Input": (),
    "Output": (),
    "Reorder": (),
    "Reshape": ("Reshape", "Flatten", "Squeeze", "Unsqueeze"),
    "Transpose": ("Transpose",),
}
UNNAMED = ("unknown", "undef")  # prefixes of primitives without a name, or chosen with the shapes


class OpenVino(Engine):
    """OpenVINO on CPUs, in float32 where it does not compute in integers.

    A processor with bfloat16 would compute floats in that by default, and how far a quantized model is from
    its float model would depend on the processor.
    """

    name = OPENVINO

    def require(self) -> None:
        """Refuse to begin without it."""
        if importlib.util.find_spec(OPENVINO) is None:
            raise MissingRuntimeError("target 'openvino' needs OpenVINO, which is not installed", hint=_HINT)

    def version(self) -> str:
        """Return its name and version."""
        return f"openvino {_openvino().__version__.partition('-')[0]}"

    def open(self, model: Model, *, threads: int) -> "CompiledModel":
        """Return the model; it is compiled again for shapes that it meets for the first time."""
        return CompiledModel(model, threads=threads)

    def open_forms(self, model: Model, *, threads: int) -> Sequence["CompiledModel"]:
        """Return the model for the sizes that it meets, and for any, as OpenVINO compiles a file as it is."""
        fitted = self.open(model, threads=threads)
        if not fitted.is_dynamic:
            return (fitted,)
        return fitted, CompiledModel(model, threads=threads, fits_shapes=False)

    def find_kernels(self, model: ir.Model) -> Mapping[str, Kernel]:
        """Return the primitive of each node, from OpenVINO's execution graph."""
        compiled = CompiledModel(serialize(marked_graph(model)), threads=1)
        found = _kernels(compiled.execution_graph(), tuple(model.graph))
        inside = Kernel("float")  # The execution graph does not show the bodies of loops and branches.
        top = set(model.graph)
        return {
            node.name or "": found.get(node, Kernel("gone")) if node in top else inside
            for node in every_node(model.graph)
        }


OPEN_VINO = OpenVino()


class CompiledModel:
    """A model that OpenVINO runs."""

    def __init__(self, model: Model, *, threads: int, fits_shapes: bool = True) -> None:
        """Read a model, to compile it for the shapes that it meets, or for any."""
        # Threads that are pinned to cores wait for whatever else runs there.
        self._settings = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": "f32",
            "ENABLE_CPU_PINNING": False,
        }
        # One Core for several models ends the process now and then, when one that is gone leaves its memory.
        self._core = _openvino().Core()
        try:
            self._model = _read(model, self._core)
        except Exception as error:  # OpenVINO raises RuntimeError, and others for odd files.
            raise _failed(NOT_LOADED, error) from error
        # OpenVINO looks at each node to tell, which takes as long as a small model does.
        self.is_dynamic = self._model.is_dynamic()
        self._fits_shapes = fits_shapes and self.is_dynamic
        # An input that no operator reads is not one of OpenVINO's model.
        self._inputs = {name for port in self._model.inputs for name in port.get_names()}
        self._compiled: Any = None
        self._requests: dict[_Shapes, Any] = {}

    def run(self, inputs: Mapping[str, Array]) -> list[Array]:
        """Return the outputs for one batch."""
        arrays = {name: np.asarray(inputs[name], order="C") for name in inputs if name in self._inputs}
        request = self._request({name: array.shape for name, array in arrays.items()})
        try:
            request.infer(arrays, share_inputs=True, share_outputs=True)
            # The request writes its next outputs to the same memory.
            return [np.array(tensor.data) for tensor in request.output_tensors]
        except Exception as error:  # OpenVINO raises RuntimeError, and others for odd arrays.
            raise _failed(FAILED, error) from error

    def _request(self, shapes: Mapping[str, tuple[int, ...]]) -> Any:
        """Return the request for these shapes: for the first few, of a model that is compiled for them."""
        own = tuple(sorted(shapes.items()))
        is_fixed = self._fits_shapes and len(self._requests) < MOST_SHAPES
        key = own if is_fixed else ()
        for known in (own, key):
            if known in self._requests:
                return self._requests[known]
        model = self._model
        if is_fixed:
            model = model.clone()
            try:
                model.reshape({name: list(shape) for name, shape in shapes.items()})
            except Exception as error:  # OpenVINO raises RuntimeError, and others for odd shapes.
                raise _failed(FAILED, error) from error
        self._requests[key] = self._compile(model).create_infer_request()
        return self._requests[key]

    def _compile(self, model: Any) -> Any:
        try:
            self._compiled = self._core.compile_model(model, DEVICE, self._settings)
        except Exception as error:  # OpenVINO raises RuntimeError, and others for odd graphs.
            raise _failed(NOT_LOADED, error) from error
        return self._compiled

    def execution_graph(self) -> list[dict[str, str]]:
        """Return the properties of each node of the graph that OpenVINO made, as texts.

        It is that for the shapes that were run last, or for any shapes if nothing was run.
        """
        compiled = self._compiled or self._compile(self._model)
        nodes = compiled.get_runtime_model().get_ordered_ops()
        return [
            {"name": node.get_friendly_name()}
            | {key: str(value.astype(str)) for key, value in node.get_rt_info().items()}
            for node in nodes
        ]


def _openvino() -> Any:
    OPEN_VINO.require()
    try:
        import openvino
    except ImportError as error:
        raise MissingRuntimeError(f"OpenVINO cannot be imported: {error}", hint=_HINT) from error
    return openvino


def _read(model: Model, core: "openvino.Core") -> Any:
    if isinstance(model, bytes):
        return core.read_model(model)
    if isinstance(model, Path):
        return core.read_model(str(model))
    if not model.data:
        return core.read_model(model.content)
    with tempfile.TemporaryDirectory() as folder:  # It looks for the constants beside the graph's file.
        for path in model.data:  # A symbolic link would lead out of the folder, which it refuses.
            _link(path, Path(folder) / path.name)
        file = Path(folder) / "model.onnx"
        file.write_bytes(model.content)
        return core.read_model(str(file))


def _link(source: Path, place: Path) -> None:
    try:
        os.link(source, place)
    except OSError:  # The folder is on another file system.
        shutil.copy(source, place)


def _kernels(graph: Sequence[Mapping[str, str]], nodes: Sequence[ir.Node]) -> dict[ir.Node, Kernel]:
    """Return the kernels of the nodes that a primitive is named for."""
    found: dict[ir.Node, Kernel] = {}
    for properties in graph:
        node = _main_node(properties, nodes)
        layer = properties["layerType"]
        if node is None or node in found or node.op_type not in _AROUND.get(layer, (node.op_type,)):
            continue
        primitive, precision = properties["primitiveType"], properties["runtimePrecision"]
        placement: KernelPlacement = "integer" if precision in _INTEGERS else "float"
        is_named = not primitive.startswith(UNNAMED)
        found[node] = Kernel(placement, primitive if is_named else layer)
    return found


def _main_node(properties: Mapping[str, str], nodes: Sequence[ir.Node]) -> ir.Node | None:
    """Return the first operator that a primitive was made of; the others became a part of it."""
    marks = MARK.finditer(properties.get("originalLayersNames", ""))
    merged = (nodes[int(mark.group(1))] for mark in marks)
    return next((node for node in merged if not is_pair_node(node)), None)


def _failed(what: str, error: Exception) -> PtqError:
    if isinstance(error, PtqError):
        return error
    said = " ".join(str(error).split())
    return RuntimeFailedError(
        f"{what}: {said[:_SAID_LIMIT]}", hint=HINT_ON_ARM if ON_ARM in said else HINT_OF_FAILURE
    )
