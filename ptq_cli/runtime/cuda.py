"""Check before any work that CUDA is available: ONNX Runtime and PyTorch must both have it."""

import warnings
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import numpy as np
import onnxruntime

from ptq_cli.core.errors import DeviceError, RuntimeFailedError, first_line
from ptq_cli.runtime.machine import Device
from ptq_cli.runtime.session import NO_MEMORY, Session, SessionPlace

_DISTRIBUTIONS = ("onnxruntime", "onnxruntime-gpu")  # into one folder: the later one hides the other
SAME_VERSION = "onnxruntime-gpu, torch and the driver must be for the same CUDA version"
INSTALL = "pip uninstall onnxruntime onnxruntime-gpu, then pip install onnxruntime-gpu"


def require_device(device: Device) -> None:
    """Check that models can be run on a device, and their tensors counted there.

    The host always can.
    """
    if device.is_host:
        return
    require_provider(device)
    require_gpu(device)
    _try(device)


def has_kernel_compiler() -> bool:
    """Return whether the extra ``cuda`` is installed, whose numba-cuda compiles kernels that count."""
    return find_spec("numba_cuda") is not None


def cuda_version() -> str:
    """Return the version of CUDA that PyTorch was built for."""
    import torch

    return str(torch.version.cuda)


def require_provider(device: Device) -> None:
    """Check that this ONNX Runtime was built for a device."""
    available = onnxruntime.get_available_providers()
    if device.provider in available:
        return
    installed = [found for name in _DISTRIBUTIONS if (found := _installed(name))]
    have = ", of which one hides the other, have" if len(installed) > 1 else " has"
    raise DeviceError(
        f"'{device}' needs ONNX Runtime's {device.provider}, and {' and '.join(installed) or 'this one'}"
        f"{have} only {', '.join(available)}",
        hint=INSTALL,
    )


def require_gpu(device: Device) -> None:
    """Check that this PyTorch was built for CUDA, and finds the GPU."""
    import torch

    if torch.version.cuda is None:
        raise DeviceError(
            f"'{device}' needs a PyTorch with CUDA, and torch {torch.__version__} is a build without it",
            hint="install the build of torch for your CUDA version",
        )
    with warnings.catch_warnings(record=True) as told:  # why there is none, as of a driver that is too old
        warnings.simplefilter("always")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        reason = f": {first_line(Warning(told[0].message))}" if told else ""
        raise DeviceError(
            f"'{device}': PyTorch finds no GPU that it can use{reason}",
            hint="check that nvidia-smi shows one, and that CUDA_VISIBLE_DEVICES is not empty",
        )
    if device.number >= count:
        known = "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        raise DeviceError(
            f"there is no '{device}': PyTorch finds {count} GPU{'s' * (count > 1)}, {known}",
            hint="CUDA_VISIBLE_DEVICES may hide some",
        )


def _try(device: Device) -> None:
    """Run a model of one operator, and look at what it computes with PyTorch."""
    # Both are loaded only now: a library that is missing, or a GPU that they were not built for, shows here.
    from ptq_cli.runtime.tapping.on_device import as_tensors

    try:
        session = Session(_negation(), threads=1, place=SessionPlace(device))
        outputs = session.run_on_device({"x": np.array([1.0, 2.0], np.float32)})
        (tensor,) = as_tensors(outputs.values)
        found = (tensor * 2).tolist()
    # Of torch; its errors of CUDA are RuntimeErrors.
    except (RuntimeFailedError, RuntimeError) as error:
        reason = error.message if isinstance(error, RuntimeFailedError) else first_line(error)
        if NO_MEMORY.search(reason):
            raise DeviceError(
                f"the memory of '{device}' is full: {reason}",
                hint="nvidia-smi shows which processes use it: end one, or choose another, such as cuda:1",
            ) from error
        raise DeviceError(f"'{device}' cannot be used: {reason}", hint=SAME_VERSION) from error
    if found != [-2.0, -4.0]:
        raise DeviceError(
            f"'{device}' computes wrong results: twice the negative of 1 and 2 is {found}", hint=SAME_VERSION
        )


def _negation() -> bytes:
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "negate", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return bytes(model.SerializeToString())


def _installed(name: str) -> str:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return ""
