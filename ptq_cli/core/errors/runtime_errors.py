"""A runtime, a device or the memory does not suffice."""

from ptq_cli.core.errors.ptq_error import PtqError


class RuntimeFailedError(PtqError):
    """ONNX Runtime cannot load or run the model; the message includes its error."""

    code = "PTQ-RUNTIME-001"


class MemoryLimitError(PtqError):
    """``--max-memory`` is too small even for one sample and one tensor at a time; the hint has a limit."""

    code = "PTQ-RUNTIME-002"


class NoMemoryError(PtqError):
    """There was not enough memory for what the command did."""

    code = "PTQ-RUNTIME-004"


class MissingRuntimeError(PtqError):
    """The target's runtime is not installed, or cannot be imported."""

    code = "PTQ-RUNTIME-005"


class DeviceError(PtqError):
    """``--device`` cannot be used: no CUDA in ONNX Runtime or PyTorch, no such GPU, or missing libraries."""

    code = "PTQ-RUNTIME-003"
