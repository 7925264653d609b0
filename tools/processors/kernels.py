"""The integer kernels of a quantized file, cut apart: each reads inputs of its own.

What is cut is the graph that ONNX Runtime makes of a file, because its operators name all that a kernel
computes with. It is optimized only as far as all processors agree: how images lie in memory is decided where
they run.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from tools.processors.exact import A_STEP, SUMMING, Expected, Numbers, expect

Tensors = Mapping[str, Numbers]

GIVEN = "/given"
"""Ends the name of an input that stands for what another kernel makes."""
UNFUSED = ("DynamicQuantizeMatMulFusion", "MatMulIntegerToFloatFusion")
"""Without them a MatMulInteger stays, whose output are the sums."""


def open_session(
    model: bytes,
    *,
    exact: bool = False,
    level: str = "ORT_ENABLE_ALL",
    disabled: Sequence[str] = (),
    saved: Path | None = None,
) -> onnxruntime.InferenceSession:
    """Return a session of one thread."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.add_session_config_entry("session.x64quantprecision", str(int(exact)))
    if saved is not None:
        options.optimized_model_filepath = str(saved)
    providers = ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(model, options, providers, disabled_optimizers=list(disabled))


def run(session: onnxruntime.InferenceSession, inputs: Tensors) -> dict[str, Numbers]:
    """Return the outputs by name."""
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, map(np.asarray, session.run(names, dict(inputs))), strict=True))


class Kernels:
    """The integer kernels of a file that integers alone decide; those of nested graphs are not among them.

    Attributes:
        nodes: in the order of the graph.
    """

    def __init__(self, model: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "optimized.onnx"
            open_session(model, level="ORT_ENABLE_EXTENDED", disabled=UNFUSED, saved=path)
            self._whole = onnx.load(path)
        graph = self._whole.graph
        self._constants = {item.name: onnx.numpy_helper.to_array(item) for item in graph.initializer}
        self.nodes = [node for node in graph.node if _is_kernel(node)]
        self._made = {node.output[0] for node in self.nodes}
        names = (name for node in self.nodes for name in node.input)
        self._read = dict.fromkeys(name for name in names if name and name not in self._constants)

    def met(self, batches: Sequence[Tensors]) -> list[Tensors]:
        """Return what the kernels read when the file runs on each batch, by inputs of ``apart``."""
        tapped = onnx.ModelProto()
        tapped.CopyFrom(self._whole)
        names = [name for name in self._read if name not in batches[0]]
        del tapped.graph.output[:]
        tapped.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
        session = open_session(tapped.SerializeToString(), exact=True)
        tensors = [{**batch, **run(session, batch)} for batch in batches]
        return [{self._input(name): found[name] for name in self._read} for found in tensors]

    def apart(self, met: Tensors) -> bytes:
        """Return a model in which each kernel reads inputs of the model and makes an output."""
        nodes = []
        for node in self.nodes:
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            copy.input[:] = [self._input(name) for name in node.input]
            nodes.append(copy)
        inputs = [
            onnx.helper.make_tensor_value_info(
                name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), [None] * array.ndim
            )
            for name, array in met.items()
        ]
        used = {name for node in nodes for name in node.input}
        graph = onnx.helper.make_graph(
            nodes,
            "kernels",
            inputs,
            [onnx.ValueInfoProto(name=node.output[0]) for node in nodes],
            [item for item in self._whole.graph.initializer if item.name in used],
        )
        opsets, version = self._whole.opset_import, self._whole.ir_version
        content: bytes = onnx.helper.make_model(
            graph, opset_imports=opsets, ir_version=version
        ).SerializeToString()
        return content

    def expected(self, inputs: Tensors, here: Tensors) -> dict[str, Expected]:
        """Return what each kernel has to give, by the name of its output."""
        found = {}
        for node in self.nodes:
            output = node.output[0]
            values = [self._constants.get(name, inputs.get(self._input(name))) for name in node.input]
            summing = node.op_type in SUMMING
            found[output] = expect(node, values) if summing else Expected(here[output], A_STEP)
        return found

    def _input(self, name: str) -> str:
        return f"{name}{GIVEN}" if name in self._made else name


def _is_kernel(node: onnx.NodeProto) -> bool:
    return node.op_type in SUMMING or node.op_type.startswith("QLinear")


def extremes(inputs: Tensors, seed: int) -> Tensors:
    """Return inputs of the same shapes whose integers of 8 bits are the least or the largest, at random."""
    random = np.random.default_rng(seed)

    def extreme(array: Numbers) -> Numbers:
        if array.dtype not in (np.uint8, np.int8):
            return array
        limits = np.iinfo(array.dtype)
        return random.choice(np.array([limits.min, limits.max], array.dtype), array.shape)

    return {name: extreme(array) for name, array in inputs.items()}
