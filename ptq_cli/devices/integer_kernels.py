"""The integer kernels of a quantized file, each cut out as a model of its own, with what it has to give.

Which kernels there are, and what each computes with, is read from the graph that ONNX Runtime makes of a
file. It is optimized only as far as all processors agree: how images lie in memory is decided where they run.
A case is then the part of the file itself between the integers that a kernel reads and what it makes, so that
any runtime may make its own kernel of it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

from ptq_cli.core.errors import RuntimeFailedError
from ptq_cli.core.tensors import Array
from ptq_cli.devices.exact_sums import A_STEP, SUMMING, Expected, expect
from ptq_cli.models.files.mapped_constants import DATA_SUFFIX
from ptq_cli.models.files.stored import StoredModel, serialize
from ptq_cli.models.files.storing import in_memory
from ptq_cli.runtime.failures import failed_load, failed_run
from ptq_cli.runtime.session import DATA_FOLDER, OPTIMIZED_DATA, SHIFTED, SILENT

Tensors = Mapping[str, Array]

UNFUSED = ("DynamicQuantizeMatMulFusion", "MatMulIntegerToFloatFusion")
"""Without them a MatMulInteger stays, whose output are the sums."""
EXACT_SUMS_OPTION = "session.x64quantprecision"
"""Makes unsigned weights of signed ones, whose sums saturate on no processor; such kernels are slower."""


@dataclass(frozen=True)
class KernelCase:
    """One kernel as a model of its own.

    Attributes:
        node: its name.
        op: the operator that ONNX Runtime makes of it.
        model: reads integers, and gives what the kernel gives.
        runs: inputs by name, and what has to come out, by name.
    """

    node: str
    op: str
    model: bytes
    runs: tuple[tuple[Tensors, Mapping[str, Expected]], ...]

    @property
    def adds_products(self) -> bool:
        """Whether all of it is decided by sums of integers; otherwise a step of rounding is allowed."""
        return self.op in SUMMING


class ReferenceSession:
    """A session of one thread whose sums of integers are exact on this processor.

    ``level`` is of ``onnxruntime.GraphOptimizationLevel``; where ``saved`` is given, the graph that runs is
    written there, with its constants beside it if they lay so before.
    """

    def __init__(
        self,
        model: bytes | StoredModel,
        *,
        level: str = "ORT_ENABLE_ALL",
        disabled: Sequence[str] = (),
        saved: Path | None = None,
    ) -> None:
        content, folder = (model, None) if isinstance(model, bytes) else (model.content, model.folder)

        def opened(exact: bool) -> onnxruntime.InferenceSession:
            options = onnxruntime.SessionOptions()
            options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
            options.intra_op_num_threads = 1
            options.log_severity_level = SILENT
            options.add_session_config_entry(EXACT_SUMS_OPTION, str(int(exact)))
            if saved is not None:
                options.optimized_model_filepath = str(saved)
            if folder is not None:
                options.add_session_config_entry(DATA_FOLDER, str(folder))
                if saved is not None:
                    options.add_session_config_entry(OPTIMIZED_DATA, f"{saved.name}{DATA_SUFFIX}")
            without = [*disabled, *([] if exact else [SHIFTED])]
            return onnxruntime.InferenceSession(
                content, options, providers=["CPUExecutionProvider"], disabled_optimizers=without
            )

        try:
            # A saved graph keeps its weights as they are in the file.
            self._session = opened(exact=saved is None)
        # Their exceptions share no base. Weights behind a QuantizeLinear cannot be turned.
        except Exception:  # noqa: BLE001
            try:
                self._session = opened(exact=False)
            except Exception as error:
                raise failed_load(error) from error

    def run(self, inputs: Tensors) -> dict[str, Array]:
        """The outputs by name."""
        names = [output.name for output in self._session.get_outputs()]
        try:
            return dict(zip(names, map(np.asarray, self._session.run(names, dict(inputs))), strict=True))
        except Exception as error:  # ONNX Runtime's exceptions share no base but Exception.
            raise failed_run(error) from error


class IntegerKernels:
    """The integer kernels of a file that integers alone decide; those of nested graphs are not among them.

    ``nodes`` are as ONNX Runtime optimizes them, in the order of the graph, which lies in ``folder`` as long
    as there are cases to be cut out.
    """

    def __init__(self, model: ir.Model, folder: Path) -> None:
        self._model, self._folder = model, folder
        path = folder / "optimized.onnx"
        ReferenceSession(serialize(model), level="ORT_ENABLE_EXTENDED", disabled=UNFUSED, saved=path)
        self._optimized = onnx.load(path, load_external_data=False)
        graph = self._optimized.graph
        self._constants = {item.name: item for item in graph.initializer}
        self.nodes = [node for node in graph.node if _is_kernel(node)]

    def cases(self, batches: Sequence[Tensors]) -> list[KernelCase]:
        """A case for each kernel: on what it meets for each batch, and on extremes of its integers.

        The first batch tells the shapes of the extremes.
        """
        met = self._met(batches) if self.nodes else []
        return [self._case(node, met, seed) for seed, node in enumerate(self.nodes)]

    def _met(self, batches: Sequence[Tensors]) -> list[Tensors]:
        """Inputs of the kernels when the file runs on each batch."""
        tapped = onnx.ModelProto()
        tapped.CopyFrom(self._optimized)
        names = dict.fromkeys(name for node in self.nodes for name in self._read_by(node))
        del tapped.graph.output[:]
        tapped.graph.output.extend(onnx.ValueInfoProto(name=it) for it in names if it not in batches[0])
        session = ReferenceSession(StoredModel(content=tapped.SerializeToString(), folder=self._folder))
        return [{**batch, **session.run(batch)} for batch in batches]

    def _case(self, node: onnx.NodeProto, met: Sequence[Tensors], seed: int) -> KernelCase:
        names = self._read_by(node)
        inputs: list[Tensors] = [{name: tensors[name] for name in names} for tensors in met]
        inputs.append(extremes(inputs[0], seed))
        output, alone = node.output[0], self._alone(node, inputs[0])
        session = ReferenceSession(alone)
        expected = [self._expected(node, given, session) for given in inputs]
        runs = tuple((given, {output: item}) for given, item in zip(inputs, expected, strict=True))
        cut = self._cut(output, inputs[0])
        # What the optimizer moved into a kernel from elsewhere is not in the part of the file.
        model = cut if cut is not None and _gives(cut, runs) else alone
        return KernelCase(node.name or output, node.op_type, model, runs)

    def _read_by(self, node: onnx.NodeProto) -> list[str]:
        return list(dict.fromkeys(it for it in node.input if it and it not in self._constants))

    def _expected(self, node: onnx.NodeProto, inputs: Tensors, alone: ReferenceSession) -> Expected:
        """Expected output of a kernel; one that adds no products may be a step from this machine's."""
        if node.op_type not in SUMMING:
            return Expected(alone.run(inputs)[node.output[0]], A_STEP)
        return expect(node, [self._constant(name, inputs.get(name)) for name in node.input])

    def _constant(self, name: str, other: Array | None) -> Array | None:
        """A constant by its name, or what is given in its place."""
        found = self._constants.get(name)
        return other if found is None else onnx.numpy_helper.to_array(found, str(self._folder))

    def _cut(self, output: str, inputs: Tensors) -> bytes | None:
        """The part of the file that makes a tensor of others; None if it has no such part."""
        try:
            graph = ir.convenience.extract(self._model.graph, list(inputs), [output])
        except ValueError:  # The optimizer moved an operator, and a tensor is not in the file.
            return None
        for name, value in sorted(graph.initializers.items()):  # They come from a set, in any order.
            del graph.initializers[name]
            graph.initializers[name] = value
        for value in graph.inputs:
            array = inputs[value.name or ""]
            value.type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
            value.shape = ir.Shape([None] * array.ndim)
        cut = ir.Model(graph, ir_version=self._model.ir_version)
        return serialize(in_memory(cut)).content

    def _alone(self, node: onnx.NodeProto, inputs: Tensors) -> bytes:
        """A model of the optimized operator."""
        specs = [
            onnx.helper.make_tensor_value_info(
                name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), [None] * array.ndim
            )
            for name, array in inputs.items()
        ]
        constants = [
            onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(item, str(self._folder)), item.name)
            for item in self._optimized.graph.initializer
            if item.name in node.input
        ]
        outputs = [onnx.ValueInfoProto(name=node.output[0])]
        graph = onnx.helper.make_graph([node], "kernel", specs, outputs, constants)
        opsets, version = self._optimized.opset_import, self._optimized.ir_version
        content: bytes = onnx.helper.make_model(
            graph, opset_imports=opsets, ir_version=version
        ).SerializeToString()
        return content


def _is_kernel(node: onnx.NodeProto) -> bool:
    return node.op_type in SUMMING or node.op_type.startswith("QLinear")


def _gives(model: bytes, runs: Iterable[tuple[Tensors, Mapping[str, Expected]]]) -> bool:
    """Tell whether a model gives what is expected on this machine."""
    try:
        session = ReferenceSession(model)
        return all(
            item.is_met_by(found[name])
            for inputs, expected in runs
            for found in [session.run(inputs)]
            for name, item in expected.items()
        )
    except RuntimeFailedError:
        return False


def extremes(inputs: Tensors, seed: int) -> Tensors:
    """Inputs of the same shapes whose integers of 8 bits are the least or the largest, at random."""
    random = np.random.default_rng(seed)

    def extreme(array: Array) -> Array:
        # A single number is a zero point, and stays the one of the other input.
        if array.dtype.itemsize != 1 or array.dtype.kind not in "iu" or array.ndim == 0:
            return array
        ends = (0, 255) if array.dtype.kind == "u" else (-128, 127)
        return random.choice(np.array(ends, array.dtype), array.shape)

    return {name: extreme(array) for name, array in inputs.items()}
