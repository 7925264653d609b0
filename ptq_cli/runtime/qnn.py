"""Qualcomm's HTP as the runtime of a target: the simulator of its package, on x86-64.

ONNX Runtime's plug-in for QNN brings a library that computes on a processor what the HTP would compute. It
was seen to be silently wrong on some operators, so ``ptq verify`` compares it with reference arithmetic,
kernel by kernel.
"""

import importlib.util
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

from ptq_cli.core.errors import MissingRuntimeError, first_line
from ptq_cli.core.process import stdout_apart
from ptq_cli.core.tensors import Array
from ptq_cli.models.files.stored import StoredModel, serialize
from ptq_cli.models.graph_reading import every_node
from ptq_cli.models.pair_operators import CLAMPS, is_pair_node
from ptq_cli.plan.target.rules import QNN
from ptq_cli.runtime.engine import MARK, ON_CPU, ON_FLOATS, ON_HTP, Engine, Kernel, Model, marked_graph
from ptq_cli.runtime.session import DATA_FOLDER, SILENT, failed_load, failed_run

MODULE = "onnxruntime_qnn"
PROVIDER = "QNNExecutionProvider"
HINT = "pip install 'ptq-cli[qnn]' on x86-64 Linux with Python 3.11 or newer"
# An HTP of version 73. Without one the simulator is a version 68, which computes neither float16 nor
# products of 16-bit activations.
SOC_MODEL = 60
_MOST_SHAPES = 4  # of inputs that a model is compiled for
_Shapes = tuple[tuple[str, tuple[int, ...]], ...]


class Qnn(Engine):
    """The HTP simulator.

    Example:
        >>> QNN_HTP.title
        'HTP simulator'
    """

    name = QNN
    counted = (*Engine.counted, "Softmax", "LayerNormalization")

    def require(self) -> None:
        """Refuse to begin without it."""
        if not is_installed():
            raise MissingRuntimeError("the HTP simulator is not installed", hint=HINT)

    def version(self) -> str:
        """Return its name and version."""
        from importlib.metadata import version  # imported for this alone

        return f"onnxruntime-qnn {version('onnxruntime-qnn')}"

    def open(self, model: Model, *, threads: int) -> "SimulatedModel":
        """Return the model; it is compiled for each shape of its inputs."""
        return SimulatedModel(model, threads=threads)

    def find_kernels(self, model: ir.Model) -> Mapping[str, Kernel]:
        """Return where each node was placed, from what the session reports."""
        placed = _placed(serialize(marked_graph(model)))
        nodes = enumerate(model.graph)
        found = {node: _kernel(node, placed.get(index, "")) for index, node in nodes}
        inside = Kernel("float", ON_CPU)  # The HTP has no loops and branches.
        return {node.name or "": found.get(node, inside) for node in every_node(model.graph)}


QNN_HTP = Qnn()


def is_installed() -> bool:
    """Return whether the simulator's package is there."""
    return importlib.util.find_spec(MODULE) is not None


class SimulatedModel:
    """A model that the simulator runs."""

    def __init__(self, model: Model, *, threads: int) -> None:
        _register()
        self._graph, self._folder = _graph_of(model)
        self._sizes = _static_shapes(self._graph)
        self._threads = threads
        self._sessions: dict[_Shapes, onnxruntime.InferenceSession] = {}

    def run(self, inputs: Mapping[str, Array]) -> list[Array]:
        """Return the outputs for one batch; a model of a static batch runs as often as the batch holds it.

        Edge case: The outputs of several runs are joined along their first axis.
        """
        runs = [self._run(part) for part in self._parts(inputs)]
        return runs[0] if len(runs) == 1 else [np.concatenate(found) for found in zip(*runs, strict=True)]

    def _parts(self, inputs: Mapping[str, Array]) -> Iterator[Mapping[str, Array]]:
        sizes = self._sizes
        axes = {
            name: next(
                (axis for axis, size in enumerate(array.shape) if sizes[name][axis] not in (0, size)), None
            )
            for name, array in inputs.items()
            if len(sizes.get(name, ())) == array.ndim
        }
        larger = {name: axis for name, axis in axes.items() if axis is not None}
        counts = {inputs[name].shape[axis] // sizes[name][axis] for name, axis in larger.items()}
        for index in range(counts.pop() if len(counts) == 1 else 1):
            own = {name: sizes[name][axis] for name, axis in larger.items()}
            yield {
                name: array.take(range(index * own[name], (index + 1) * own[name]), larger[name])
                if name in own
                else array
                for name, array in inputs.items()
            }

    def _run(self, inputs: Mapping[str, Array]) -> list[Array]:
        key = tuple(sorted((name, array.shape) for name, array in inputs.items()))
        if key not in self._sessions:
            if len(self._sessions) == _MOST_SHAPES:
                self._sessions.pop(next(iter(self._sessions)))
            shapes = {name: array.shape for name, array in inputs.items()}
            self._sessions[key] = _session(with_shapes(self._graph, shapes), self._folder, self._threads)
        try:
            return [np.asarray(array) for array in self._sessions[key].run(None, dict(inputs))]
        except Exception as error:  # ONNX Runtime's exceptions share no base but Exception.
            raise failed_run(error) from error


@cache
def _register() -> Path:
    """Make the plug-in known to ONNX Runtime, and return the folder of its libraries."""
    QNN_HTP.require()
    try:
        import onnxruntime_qnn  # imported when the first model is opened: it loads the libraries

        library = Path(onnxruntime_qnn.get_library_path()).resolve()
        onnxruntime.register_execution_provider_library(PROVIDER, str(library))
    except Exception as error:  # ONNX Runtime's exceptions share no base but Exception.
        raise MissingRuntimeError(
            f"the HTP simulator cannot be loaded: {first_line(error)}", hint=HINT
        ) from error
    return library.parent


def _session(
    graph: onnx.ModelProto,
    folder: Path | None,
    threads: int,
    *,
    placed: bool = False,
    soc_model: int = SOC_MODEL,
    context: Path | None = None,
) -> "onnxruntime.InferenceSession":
    """Return a session of the simulator.

    Args:
        graph: with static shapes of its inputs: with an open one all is on the CPU, without a word.
        folder: of its constants outside the graph.
        threads: of what stays on the CPU.
        placed: note where each node is placed.
        soc_model: Qualcomm's number of the chip that is compiled for.
        context: where to write what was compiled.
    """
    libraries = _register()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = SILENT
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if placed:
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    if context is not None:
        options.add_session_config_entry("ep.context_enable", "1")
        options.add_session_config_entry("ep.context_file_path", str(context))
        options.add_session_config_entry("ep.context_embed_mode", "1")
    if folder is not None:
        options.add_session_config_entry(DATA_FOLDER, str(folder))
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == PROVIDER]
    settings = {
        "backend_path": str(libraries / "libQnnHtp.so"),
        "soc_model": str(soc_model),
        "offload_graph_io_quantization": "0",
    }
    try:
        options.add_provider_for_devices(devices, settings)
        with stdout_apart():
            return onnxruntime.InferenceSession(graph.SerializeToString(), options)
    except Exception as error:  # ONNX Runtime's exceptions share no base but Exception.
        raise failed_load(error) from error


def compile_context(model: StoredModel, soc_model: int) -> bytes:
    """Compile a model for an HTP: an ONNX file that only that chip's runtime reads."""
    graph, folder = _graph_of(model)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "context.onnx"
        _session(graph, folder, 1, soc_model=soc_model, context=path)
        return path.read_bytes()


def _graph_of(model: Model) -> tuple[onnx.ModelProto, Path | None]:
    """Return a model's graph, and the folder of its constants outside it."""
    if isinstance(model, Path):
        return onnx.load(model, load_external_data=False), model.parent
    content = model.content if isinstance(model, StoredModel) else model
    return onnx.load_from_string(content), model.folder if isinstance(model, StoredModel) else None


def _static_shapes(graph: onnx.ModelProto) -> dict[str, list[int]]:
    """Return the shape of each input; 0 for an open size."""
    return {
        item.name: [dimension.dim_value for dimension in item.type.tensor_type.shape.dim]
        for item in graph.graph.input
    }


def with_shapes(graph: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> onnx.ModelProto:
    """Return a graph whose inputs have static shapes.

    Example:
        >>> text = '<ir_version: 10, opset_import: ["": 20]> g (float[n] x) => (float[n] y) { y = Exp(x) }'
        >>> fixed = with_shapes(onnx.parser.parse_model(text), {"x": (2,)})
        >>> [dimension.dim_value for dimension in fixed.graph.input[0].type.tensor_type.shape.dim]
        [2]
    """
    fixed = onnx.ModelProto()
    fixed.CopyFrom(graph)
    for item in fixed.graph.input:
        if item.name in shapes:
            item.type.tensor_type.ClearField("shape")
            for size in shapes[item.name]:
                item.type.tensor_type.shape.dim.add().dim_value = size
    return fixed


def _placed(marked: StoredModel) -> dict[int, str]:
    """Return the provider of each node, by its mark, that a session of batches of 1 reports."""
    graph, folder = _graph_of(marked)
    shapes = {name: [size or 1 for size in shape] for name, shape in _static_shapes(graph).items()}
    session = _session(with_shapes(graph, shapes), folder, 1, placed=True)
    parts = session.get_provider_graph_assignment_info()
    marks = [(MARK.search(node.name), part.ep_name) for part in parts for node in part.get_nodes()]
    return {int(mark.group(1)): provider for mark, provider in marks if mark is not None}


def _kernel(node: ir.Node, provider: str) -> Kernel:
    if not provider:
        return Kernel("gone")
    if provider != PROVIDER:
        return Kernel("float", ON_CPU)
    if node.op_type in CLAMPS and not is_pair_node(node.inputs[0].producer() if node.inputs[0] else None):
        return Kernel("gone")
    return Kernel("integer", ON_HTP) if _is_integer(node) else Kernel("float", ON_FLOATS)


def _is_integer(node: ir.Node) -> bool:
    """Return whether a node stands between pairs, or before what folds into the next pair."""
    computed = [value for value in node.inputs if value is not None and value.const_value is None]
    # A shape is not an activation.
    before = [value.producer() for value in computed if value.dtype != ir.DataType.INT64]
    behind = [reader for reader, _ in node.outputs[0].uses()]
    folded = (*CLAMPS, "Add") if node.op_type == "MatMul" else CLAMPS
    reads = all(item is not None and (is_pair_node(item) or item.op_type in CLAMPS) for item in before)
    return reads and bool(before) and all(is_pair_node(item) or item.op_type in folded for item in behind)
