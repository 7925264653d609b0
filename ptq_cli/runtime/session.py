"""ONNX Runtime sessions: threads, options, running a batch, and errors with a hint."""

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from ptq_cli.core.errors import DeviceError, RuntimeFailedError
from ptq_cli.core.process import is_own_process
from ptq_cli.core.tensors import Array, TensorSpec
from ptq_cli.models.files.mapped_constants import DATA_SUFFIX
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.models.shapes import INDEX_HINT, is_index_out_of_range
from ptq_cli.runtime.machine import HOST, Device, usable_cores
from ptq_cli.runtime.narrow_types import (
    DisabledOptimizers,
    disabled_optimizers,
    has_four_bits,
    without_four_bits,
)

_SAID_LIMIT = 400  # characters of ONNX Runtime's message that are passed on
NO_ARRAY = "numpy has no bfloat16: export the model with outputs in float32"
OTHER_SIZE = (
    "check that the model accepts inputs of this size; try a batch of 1, or with text a shorter text.window"
)
# As the allocators of ONNX Runtime, C++ and CUDA, cuDNN and cuBLAS say it
NO_MEMORY = re.compile(
    r"failed to allocate memory|bad.alloc|out of memory|(CUDNN|CUBLAS)_STATUS_ALLOC_FAILED|"
    r"Available memory of \d+ is smaller than requested",
    re.IGNORECASE,
)
LESS_MEMORY = "there is not enough memory: pass smaller batches, such as --set data.batch_size=4"
NO_KERNEL = (
    "it has no kernel for this operator in these types and this opset: most kernels are for float32; export "
    "float64 in float32, or write the operator with others"
)
UNKNOWN_OPERATOR = "run `ptq inspect` to see its layers; the model may have an operator of a custom domain"


def failed_load(error: Exception) -> RuntimeFailedError:
    """Return the error for a model that ONNX Runtime did not open.

    Example:
        >>> print(failed_load(RuntimeError("NOT_IMPLEMENTED: Add in bfloat16")).message)
        ONNX Runtime cannot load the model: NOT_IMPLEMENTED: Add in bfloat16
    """
    return RuntimeFailedError(
        f"ONNX Runtime cannot load the model: {_said(error)}",
        hint=NO_KERNEL if "NOT_IMPLEMENTED" in str(error) else UNKNOWN_OPERATOR,
    )


def failed_run(error: Exception) -> RuntimeFailedError:
    """Return the error for a batch that ONNX Runtime did not compute.

    Example:
        >>> failed_run(MemoryError("std::bad_alloc")).hint
        'there is not enough memory: pass smaller batches, such as --set data.batch_size=4'
    """
    return RuntimeFailedError(f"ONNX Runtime failed on a batch: {_said(error)}", hint=_hint(str(error)))


def _hint(said: str) -> str:
    if "Numpy type" in said:
        return NO_ARRAY
    if is_index_out_of_range(said):
        return INDEX_HINT
    if NO_MEMORY.search(said):
        return LESS_MEMORY
    return OTHER_SIZE


def is_memory_full(error: RuntimeFailedError) -> bool:
    """Return whether a run failed as there was not enough memory for it."""
    return NO_MEMORY.search(error.message) is not None


def _said(error: Exception) -> str:
    # Its messages have several lines, and which sizes did not fit stands on a later one.
    return " ".join(str(error).split())[:_SAID_LIMIT]


_KERNEL = "MatMulNBits"
EXACT, ROUNDED = 0, 4  # activations in float, or in 8 bits by block: ONNX Runtime's default
_MOST = 4
_OPTION = "session.qdq_matmulnbits_accuracy_level"
_PRODUCTS = ("MatMul", "Gemm")
RESTORES = "DequantizeLinear"


def reads_blocks(model: StoredModel) -> bool:
    """Return whether ONNX Runtime may compute a layer of a model with MatMulNBits from its DequantizeLinear.

    That is a product of floats and of a constant behind a DequantizeLinear. MatMulNBits in the file itself
    has a level of its own there.
    """
    graph = onnx.load_model_from_string(model.content).graph
    made = {name: node for node in graph.node for name in node.output}
    computed = {name for node in graph.node for name in node.output if node.op_type != "Transpose"}
    for node in graph.node:
        if node.op_type not in _PRODUCTS or not node.input[0]:
            continue
        one, other = made.get(node.input[0]), made.get(node.input[1])
        is_restored = other is not None and other.op_type == RESTORES and other.input[0] not in computed
        if is_restored and (one is None or one.op_type != RESTORES):
            return True
    return False


SILENT = 4  # log level of fatal errors only; failures raise all the same
OPTIMIZED_DATA = "session.optimized_model_external_initializers_file_name"
# Makes unsigned weights of signed ones, whose sums saturate on no processor; such kernels are slower.
EXACT_SUMS_OPTION = "session.x64quantprecision"
# Makes unsigned activations of signed ones, for kernels that saturate on x86 without VNNI. (The option
# x64quantprecision, for unsigned ones too, fails to load weights behind a QuantizeLinear.)
SHIFTED = "QDQS8ToU8Transformer"
DATA_FOLDER = "session.model_external_initializers_file_folder_path"
NUMPY_DTYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(int16)": np.int16,
    "tensor(int8)": np.int8,
    "tensor(uint64)": np.uint64,
    "tensor(uint32)": np.uint32,
    "tensor(uint16)": np.uint16,
    "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_,
}


@contextmanager
def _ended_after(seconds: float | None) -> Iterator[onnxruntime.RunOptions | None]:
    """Yield the options of a run that fails when it has taken so long; a loop may never end by itself."""
    if seconds is None:
        yield None
        return
    options = onnxruntime.RunOptions()
    timer = threading.Timer(seconds, setattr, (options, "terminate", True))
    timer.daemon = True
    timer.start()
    try:
        yield options
    finally:
        timer.cancel()


@dataclass(frozen=True)
class Kernels:
    """How quantized operators are computed.

    Attributes:
        accuracy_level: of MatMulNBits, which reads weights in blocks; None for ONNX Runtime's default.
        exact_sums: no sum of two products saturates on this processor where activations are int8.
        unsigned_weights: none saturates where weights are integers in the file: they become unsigned.
        integers: ONNX Runtime makes integer kernels of Q/DQ pairs: it then quantizes float weights beside
            quantized activations, too. False computes pairs as they are written.
    """

    accuracy_level: int | None = None
    exact_sums: bool = False
    unsigned_weights: bool = False
    integers: bool = True


@dataclass(frozen=True)
class SessionPlace:
    """Where a session runs, and what memory it keeps there.

    Attributes:
        device: ``ptq_cli.runtime.cuda`` tells whether there is one. What CUDA has no kernel for, ONNX Runtime
            runs on the host.
        memory: bytes of a GPU's memory that ONNX Runtime may take; None for any number.
        arena: keep memory for the next run; False gives it back, which takes time and saves memory.
        prepack: copy constants outside the graph into the form that kernels like best, too: this takes their
            memory, for a session that runs often.
    """

    device: Device = HOST
    memory: int | None = None
    arena: bool = True
    prepack: bool = False

    @property
    def provider_options(self) -> dict[str, str]:
        """How ONNX Runtime is to run there."""
        limited = self.memory is not None and not self.device.is_host
        return self.device.provider_options | ({"gpu_mem_limit": str(self.memory)} if limited else {})


@dataclass(frozen=True)
class Written:
    """Files that a session writes.

    Attributes:
        graph: the graph that ONNX Runtime made of the model.
        apart: large constants of that graph lie in a file beside it, and are not copied into the form that
            kernels like best: the graph is to be looked at, and not run.
        times: how the file of the time of each kernel begins; ``end_profile`` returns its path.
    """

    graph: Path | None = None
    apart: bool = False
    times: Path | None = None


DEFAULT_KERNELS, ON_HOST, NOTHING_WRITTEN = Kernels(), SessionPlace(), Written()
NO_ARENA, PREPACKED = SessionPlace(arena=False), SessionPlace(arena=False, prepack=True)


class Session:
    """A model that runs.

    Attributes:
        outputs: names of the outputs, in the order in which ``run`` returns them.
        inputs: specs of the inputs.
    """

    def __init__(
        self,
        model: bytes | Path | StoredModel,
        *,
        threads: int = 0,
        optimize: bool = True,
        kernels: Kernels = DEFAULT_KERNELS,
        place: SessionPlace = ON_HOST,
        writes: Written = NOTHING_WRITTEN,
    ) -> None:
        """Open a session.

        Args:
            model: a serialized model, or the path of a file. Constants outside the graph are mapped into
                memory, and not copied into the form that kernels like best.
            threads: of one operator; 0 for one a core that this process may use.
            optimize: let ONNX Runtime fuse; False runs the graph operator by operator, as it is written.
            kernels: how quantized operators are computed.
            place: where it runs.
            writes: files that it writes.
        """
        _silence_default_logger()
        options = _options(threads, optimize=optimize, place=place)
        if kernels.accuracy_level is not None:
            options.add_session_config_entry(_OPTION, str(kernels.accuracy_level))
        if not kernels.integers:
            options.add_session_config_entry("session.disable_quant_qdq", "1")
        if kernels.unsigned_weights:
            options.add_session_config_entry(EXACT_SUMS_OPTION, "1")
        if writes.graph is not None:
            options.optimized_model_filepath = str(writes.graph)
            if writes.apart:
                options.add_session_config_entry(OPTIMIZED_DATA, f"{writes.graph.name}{DATA_SUFFIX}")
        if writes.times is not None:
            options.enable_profiling, options.profile_file_prefix = True, str(writes.times)
        stored = model if isinstance(model, StoredModel) else None
        if stored is not None and stored.folder is not None:
            options.add_session_config_entry(DATA_FOLDER, str(stored.folder))
        if writes.apart or (stored is not None and stored.is_apart and not place.prepack):
            options.add_session_config_entry("session.disable_prepacking", "1")
        device = place.device
        self._session = _opened(_source(model), options, place, [SHIFTED] if kernels.exact_sums else [])
        self._device = device
        self.outputs: tuple[str, ...] = tuple(output.name for output in self._session.get_outputs())

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Name, dtype and shape of each input."""
        return tuple(_spec(item) for item in self._session.get_inputs())

    @property
    def output_specs(self) -> tuple[TensorSpec, ...]:
        """Name, dtype and shape of each output that is an array of numbers."""
        return tuple(_spec(item) for item in self._session.get_outputs() if item.type in NUMPY_DTYPES)

    def run(
        self,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] | None = None,
        *,
        most_seconds: float | None = None,
    ) -> list[Array]:
        """Return the outputs for one batch; a run that takes longer than ``most_seconds`` fails."""
        names = list(outputs) if outputs is not None else None
        try:
            with _ended_after(most_seconds) as options:
                found = self._session.run(names, dict(inputs), options)
        except Exception as error:  # ONNX Runtime's exceptions share no base but Exception.
            raise failed_run(error) from error
        # A tensor of rank 0 comes as a number, which cannot be fed again.
        return [np.asarray(array) if isinstance(array, np.generic) else array for array in found]

    def end_profile(self) -> str:
        """Return the path of the file with the times of all runs so far, of a session that was profiled."""
        return str(self._session.end_profiling())

    def bind_outputs(self, outputs: Sequence[Array]) -> "OutputBinding":
        """Return arrays bound to the outputs, for any number of calls of ``run_bound``.

        Shapes: outputs: as ``run`` returns them for the inputs of those runs.
        """
        binding = self._session.io_binding()
        for name, array in zip(self.outputs, outputs, strict=True):
            binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        return OutputBinding(self, binding)

    def run_bound(self, inputs: Mapping[str, Array], outputs: "OutputBinding") -> None:
        """Run one batch, and write all the outputs into the arrays that were bound."""
        arrays = {name: np.asarray(array, order="C") for name, array in inputs.items()}
        try:
            for name, array in arrays.items():
                outputs.binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
            self._session.run_with_iobinding(outputs.binding)
        except Exception as error:  # ONNX Runtime's exceptions share no base but Exception.
            raise failed_run(error) from error

    def run_on_device(self, inputs: Mapping[str, Array]) -> "DeviceOutputs":
        """Return the outputs for one batch, left in the memory of the session's device.

        ONNX Runtime has finished with them. Their shapes need not be known; each speaks DLPack and owns its
        memory, which ONNX Runtime uses again for a later run once nobody holds it.
        """
        binding = self._session.io_binding()
        for name in self.outputs:
            binding.bind_output(name, *self._device.memory)
        self._run_there(inputs, binding)
        values = binding.get_outputs_as_ortvaluevector()
        # An iterator would not own them.
        return DeviceOutputs(binding, tuple(values[index] for index in range(len(values))))

    def run_on_device_again(self, inputs: Mapping[str, Array], outputs: "DeviceOutputs") -> None:
        """Run a batch of the same shapes, and write the outputs of an earlier run over.

        Errors: ``RuntimeFailedError``, also where an output would have another shape.
        """
        self._run_there(inputs, outputs.binding)

    def _run_there(self, inputs: Mapping[str, Array], binding: Any) -> None:
        try:
            for name, array in inputs.items():
                value = onnxruntime.OrtValue.ortvalue_from_numpy(
                    np.asarray(array, order="C"), *self._device.memory
                )
                binding.bind_ortvalue_input(name, value)
            binding.synchronize_inputs()
            self._session.run_with_iobinding(binding)
            # DLPack hands over no stream here, so whoever reads them does not wait for ONNX Runtime's.
            binding.synchronize_outputs()
        except Exception as error:  # ONNX Runtime's exceptions share no base but Exception.
            raise failed_run(error) from error


@dataclass(frozen=True)
class DeviceOutputs:
    """Outputs of a run, in the memory of a device.

    Attributes:
        binding: ONNX Runtime's own object; runs with it write into the same outputs.
        values: one for each output; they speak DLPack.
    """

    binding: Any
    values: tuple[Any, ...]


@dataclass(frozen=True)
class OutputBinding:
    """Arrays that runs of a session write into.

    Attributes:
        binding: ONNX Runtime's own object; it does not keep the arrays.
    """

    session: Session
    binding: Any


def _options(threads: int, *, optimize: bool, place: SessionPlace) -> "onnxruntime.SessionOptions":
    """Options of any session."""
    options = onnxruntime.SessionOptions()
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimize else levels.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads or usable_cores()
    # Threads that spin while they wait take the cores from the counting, and from everyone else's work.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.enable_cpu_mem_arena = options.enable_mem_pattern = place.arena
    options.log_severity_level = SILENT
    options.use_deterministic_compute = not place.device.is_host
    return options


def _source(model: bytes | Path | StoredModel) -> str | bytes:
    """Return the path or the content that ONNX Runtime opens."""
    if isinstance(model, Path):
        return str(model)
    content = model.content if isinstance(model, StoredModel) else model
    return without_four_bits(content) if has_four_bits(content) else content


def _opened(
    source: str | bytes, options: "onnxruntime.SessionOptions", place: SessionPlace, without: Sequence[str]
) -> "onnxruntime.InferenceSession":
    device = place.device
    leave = DisabledOptimizers() if isinstance(source, str) else disabled_optimizers(source)
    if leave.everything:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        # Its fallback has nothing to fall back to here, and prints on stdout, which is the result's.
        session = onnxruntime.InferenceSession(
            source,
            options,
            providers=[(device.provider, place.provider_options)],
            enable_fallback=0,
            disabled_optimizers=[*leave.optimizers, *without],
        )
    except Exception as error:  # ONNX Runtime's exceptions share no base but Exception.
        raise failed_load(error) from error
    if device.provider not in session.get_providers():
        raise DeviceError(
            f"ONNX Runtime cannot load its {device.provider}, and would run on the host instead",
            hint="python -c 'import onnxruntime; onnxruntime.print_debug_info()' shows what it misses",
        )
    return session


@cache
def _silence_default_logger() -> None:
    """Silence what ONNX Runtime says outside of any session, in color and in the middle of ours."""
    # Sessions have a level of their own. This one is that of the whole process, so in a program that imports
    # ptq it stays as it is.
    if is_own_process():
        onnxruntime.set_default_logger_severity(SILENT)


def _spec(item: onnxruntime.NodeArg) -> TensorSpec:
    if item.type not in NUMPY_DTYPES:
        raise RuntimeFailedError(
            f"input '{item.name}' is a {item.type}, expected an array of numbers",
            hint="convert it to numbers in the data, outside the model",
        )
    shape = tuple(size if isinstance(size, int) else None for size in item.shape)
    return TensorSpec(item.name, np.dtype(NUMPY_DTYPES[item.type]), shape)
