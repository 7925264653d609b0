"""The integer kernels of a quantized file as models of their own, and what each has to give in exact sums.

Sums are those of the integers, of any size. They become floats, and integers again, by the operations of ONNX
Runtime: one factor in float32 for each channel, and rounding to even.

Which kernels there are, and what each computes with, is read from the graph that ONNX Runtime makes of a
file. It is optimized only as far as all processors agree: how images lie in memory is decided where they run.
A case is then the part of the file itself between the integers that a kernel reads and what it makes, so that
any runtime may make its own kernel of it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime
from numpy.lib.stride_tricks import sliding_window_view

from ptq_cli.core.errors import RuntimeFailedError
from ptq_cli.core.tensors import Array
from ptq_cli.models.files.mapped_constants import DATA_SUFFIX
from ptq_cli.models.files.stored import StoredModel, serialize
from ptq_cli.models.files.storing import in_memory
from ptq_cli.runtime.session import (
    DATA_FOLDER,
    EXACT_SUMS_OPTION,
    OPTIMIZED_DATA,
    SHIFTED,
    SILENT,
    failed_load,
    failed_run,
)

Numbers = npt.NDArray[Any]

# The operators that add products of integers, and have nothing else to round than these sums.
SUMMING = ("ConvInteger", "MatMulInteger", "MatMulIntegerToFloat", "QGemm", "QLinearConv", "QLinearMatMul")
_EXACT, A_STEP = np.array(0.0), np.array(1.0)
A_QUARTER = 0.25
_FLOAT_ROUNDING = 2.0**-21  # relative: what a scaled sum and its bias lose in float32, in any order


@dataclass(frozen=True)
class Expected:
    """What a kernel has to give.

    Attributes:
        value: its output.
        tolerance: the largest difference that passes, for each value or for all.
    """

    value: Numbers
    tolerance: Numbers

    def is_met_by(self, found: Numbers) -> bool:
        """Tell whether each value is within the tolerance; never where one is NaN."""
        if found.shape != self.value.shape or found.dtype != self.value.dtype:
            return False
        return bool(np.all(np.abs(found.astype(np.float64) - self.value) <= self.tolerance))


def expect(node: onnx.NodeProto, inputs: Sequence[Numbers | None]) -> Expected:
    """Compute a kernel that adds products: integers have to be the same, and floats those of the same sum.

    Example:
        >>> node = onnx.helper.make_node("MatMulInteger", ["a", "b"], ["y"])
        >>> a, b = np.full((1, 2), 255, np.uint8), np.full((2, 1), 127, np.int8)
        >>> expect(node, [a, b]).value.tolist()  # Two products in 16 bits end at 32767.
        [[64770]]
    """
    given: list[Any] = [*inputs, *[None] * 9]
    attributes = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
    scale, zero, bias = None, None, None
    match node.op_type:
        case "ConvInteger":
            x, w, zx, zw = given[:4]
            sums = _convolve(_centered(x, zx), _centered(w, zw), attributes)
        case "MatMulInteger":
            a, b, za, zb = given[:4]
            sums = _centered(a, za, axis=-2) @ _centered(b, zb, axis=-1)
        case "MatMulIntegerToFloat":
            a, b, sa, sb, za, zb, bias = given[:7]
            sums, scale = _centered(a, za, axis=-2) @ _centered(b, zb, axis=-1), sa * sb
        case "QLinearMatMul":
            a, sa, za, b, sb, zb, sy, zero = given[:8]
            sums, scale = _centered(a, za, axis=-2) @ _centered(b, zb, axis=-1), sa * sb / sy
        case "QGemm":
            a, sa, za, b, sb, zb, added, sy, zero = given[:9]
            a, b = _centered(a, za), _centered(b, zb, axis=0 if attributes.get("transB") else 1)
            sums = (a.T if attributes.get("transA") else a) @ (b.T if attributes.get("transB") else b)
            sums = sums if added is None else sums + added
            scale = np.float32(attributes.get("alpha", 1.0)) * sa * sb
            scale = scale if sy is None else scale / sy
        case "QLinearConv":
            x, sx, zx, w, sw, zw, sy, zero, added = given[:9]
            channels = (-1, *[1] * (x.ndim - 2))
            sums = _convolve(_centered(x, zx), _centered(w, zw), attributes)
            sums = sums if added is None else sums + added.reshape(channels)
            scale = np.reshape(sx * sw / sy, channels)
        case other:
            raise ValueError(f"{other} is not an operator that adds products")
    if scale is None:
        return Expected(sums.astype(np.int32), _EXACT)
    return _floats(sums, scale, bias) if zero is None else _integers(sums, scale, zero)


def _centered(integers: Numbers, zero: Numbers | None, axis: int = 0) -> Numbers:
    """Integers less their zero point, as float64, whose sums below 2**53 are those of int64."""
    values = integers.astype(np.float64)
    if zero is None:
        return values
    shape = [1] * values.ndim
    if zero.size > 1:
        shape[axis] = zero.size
    return values - zero.astype(np.float64).reshape(shape)


def _convolve(x: Numbers, w: Numbers, attributes: Mapping[str, Any]) -> Numbers:
    """The sums of a convolution of any number of dimensions."""
    rank, sizes = x.ndim - 2, np.array(w.shape[2:])
    strides, dilations = (np.array(attributes.get(name, [1] * rank)) for name in ("strides", "dilations"))
    extents = (sizes - 1) * dilations + 1
    padding = _padding(np.array(x.shape[2:]), extents, strides, attributes)
    windows = sliding_window_view(
        np.pad(x, [(0, 0), (0, 0), *padding]), tuple(extents), axis=tuple(range(2, rank + 2))
    )
    places = tuple(slice(None, None, step) for step in (*strides, *dilations))
    windows = windows[(slice(None), slice(None), *places)]
    axes = [1, *range(rank + 2, 2 * rank + 2)]
    groups = attributes.get("group", 1)
    sums = [
        np.tensordot(part, filters, axes=(axes, range(1, rank + 2)))
        for part, filters in zip(np.split(windows, groups, axis=1), np.split(w, groups), strict=True)
    ]
    return np.moveaxis(np.concatenate(sums, axis=-1), -1, 1)


def _padding(
    sizes: Numbers, extents: Numbers, strides: Numbers, attributes: Mapping[str, Any]
) -> list[tuple[int, int]]:
    mode, rank = attributes.get("auto_pad", b"NOTSET"), len(sizes)
    if mode in (b"NOTSET", b"VALID"):
        pads = attributes.get("pads", [0] * 2 * rank)
        return list(zip(pads[:rank], pads[rank:], strict=True))
    total = np.maximum((-(-sizes // strides) - 1) * strides + extents - sizes, 0)
    less = total // 2 if mode == b"SAME_UPPER" else total - total // 2
    return list(zip(less.tolist(), (total - less).tolist(), strict=True))


def _integers(sums: Numbers, scale: Numbers, zero: Numbers) -> Expected:
    """Sums as integers of the result's grid."""
    limits, offset = np.iinfo(zero.dtype), int(zero)
    steps = np.clip(sums.astype(np.float32) * scale, limits.min - offset, limits.max - offset)
    return Expected((np.rint(steps) + offset).astype(zero.dtype), _EXACT)


def _floats(sums: Numbers, scale: Numbers, bias: Numbers | None) -> Expected:
    """Scaled sums; a float passes that is nearer to its sum than to the next one."""
    values = sums.astype(np.float32) * scale
    result = values if bias is None else values + bias
    rounded = _FLOAT_ROUNDING * (np.abs(values) + (0 if bias is None else np.abs(bias)))
    return Expected(result, A_QUARTER * np.abs(scale) + rounded)


KernelTensors = Mapping[str, Array]

# Without them a MatMulInteger stays, whose output are the sums.
UNFUSED = ("DynamicQuantizeMatMulFusion", "MatMulIntegerToFloatFusion")


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
    runs: tuple[tuple[KernelTensors, Mapping[str, Expected]], ...]

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

    def run(self, inputs: KernelTensors) -> dict[str, Array]:
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
        self.nodes = [
            node for node in graph.node if node.op_type in SUMMING or node.op_type.startswith("QLinear")
        ]

    def cases(self, batches: Sequence[KernelTensors]) -> list[KernelCase]:
        """A case for each kernel: on what it meets for each batch, and on extremes of its integers.

        The first batch tells the shapes of the extremes.
        """
        met = self._met(batches) if self.nodes else []
        return [self._case(node, met, seed) for seed, node in enumerate(self.nodes)]

    def _met(self, batches: Sequence[KernelTensors]) -> list[KernelTensors]:
        """Inputs of the kernels when the file runs on each batch."""
        tapped = onnx.ModelProto()
        tapped.CopyFrom(self._optimized)
        names = dict.fromkeys(name for node in self.nodes for name in self._read_by(node))
        del tapped.graph.output[:]
        tapped.graph.output.extend(onnx.ValueInfoProto(name=it) for it in names if it not in batches[0])
        session = ReferenceSession(StoredModel(content=tapped.SerializeToString(), folder=self._folder))
        return [{**batch, **session.run(batch)} for batch in batches]

    def _case(self, node: onnx.NodeProto, met: Sequence[KernelTensors], seed: int) -> KernelCase:
        names = self._read_by(node)
        inputs: list[KernelTensors] = [{name: tensors[name] for name in names} for tensors in met]
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

    def _expected(self, node: onnx.NodeProto, inputs: KernelTensors, alone: ReferenceSession) -> Expected:
        """Expected output of a kernel; one that adds no products may be a step from this machine's."""
        if node.op_type not in SUMMING:
            return Expected(alone.run(inputs)[node.output[0]], A_STEP)
        return expect(node, [self._constant(name, inputs.get(name)) for name in node.input])

    def _constant(self, name: str, other: Array | None) -> Array | None:
        """A constant by its name, or what is given in its place."""
        found = self._constants.get(name)
        return other if found is None else onnx.numpy_helper.to_array(found, str(self._folder))

    def _cut(self, output: str, inputs: KernelTensors) -> bytes | None:
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

    def _alone(self, node: onnx.NodeProto, inputs: KernelTensors) -> bytes:
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


def _gives(model: bytes, runs: Iterable[tuple[KernelTensors, Mapping[str, Expected]]]) -> bool:
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


def extremes(inputs: KernelTensors, seed: int) -> KernelTensors:
    """Inputs of the same shapes whose integers of 8 bits are the least or the largest, at random."""
    random = np.random.default_rng(seed)

    def extreme(array: Array) -> Array:
        # A single number is a zero point, and stays the one of the other input.
        if array.dtype.itemsize != 1 or array.dtype.kind not in "iu" or array.ndim == 0:
            return array
        ends = (0, 255) if array.dtype.kind == "u" else (-128, 127)
        return random.choice(np.array(ends, array.dtype), array.shape)

    return {name: extreme(array) for name, array in inputs.items()}
