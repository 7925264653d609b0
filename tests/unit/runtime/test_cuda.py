"""What is missing for CUDA is told before any work, whichever part it is."""

import types
import warnings

import numpy as np
import onnxruntime
import pytest
import torch

from ptq_cli.core.errors import DeviceError
from ptq_cli.runtime import cuda
from ptq_cli.runtime.cuda import require_device, require_gpu, require_provider
from ptq_cli.runtime.machine import HOST, Device
from ptq_cli.runtime.session import Session, SessionPlace
from ptq_cli.runtime.tapping.on_device import as_tensors
from tests.devices import require_or_skip, use_the_host_as_cuda
from tests.each_case import each_case

CUDA = Device("cuda")
PROVIDERS = ["CUDAExecutionProvider", "CPUExecutionProvider"]


@pytest.fixture
def with_provider(monkeypatch):
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: PROVIDERS)


@pytest.fixture
def with_gpus(monkeypatch, with_provider):
    """A PyTorch that sees two GPUs."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


def refused(check, device=CUDA) -> DeviceError:
    with pytest.raises(DeviceError) as caught:
        check(device)
    assert caught.value.code == "PTQ-RUNTIME-003" and caught.value.hint
    return caught.value


def test_the_host_needs_nothing():
    require_device(HOST)


@pytest.mark.parametrize("check", [require_device, require_provider])
def test_an_onnxruntime_without_cuda(monkeypatch, check):
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    monkeypatch.setattr(cuda, "version", lambda name: _version(name, {"onnxruntime": "1.31.1"}))
    error = refused(check)
    assert error.message == (
        "'cuda' needs ONNX Runtime's CUDAExecutionProvider, and onnxruntime 1.31.1 has only "
        "CPUExecutionProvider"
    )
    assert error.hint == "pip uninstall onnxruntime onnxruntime-gpu, then pip install onnxruntime-gpu"


def test_an_onnxruntime_that_hides_another(monkeypatch):
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    monkeypatch.setattr(
        cuda, "version", lambda name: _version(name, {"onnxruntime": "1.31", "onnxruntime-gpu": "1.30"})
    )
    assert (
        "onnxruntime 1.31 and onnxruntime-gpu 1.30, of which one hides the other, have only CPU"
        in refused(require_provider).message
    )


def _version(name, installed):
    if name not in installed:
        raise cuda.PackageNotFoundError(name)
    return installed[name]


def test_a_pytorch_without_cuda(monkeypatch, with_provider):
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch, "__version__", "2.13.0+cpu")
    error = refused(require_device)
    assert error.message == ("'cuda' needs a PyTorch with CUDA, and torch 2.13.0+cpu is a build without it")
    assert "CUDA version" in error.hint


def test_no_gpu_and_pytorch_says_why(monkeypatch, with_gpus):
    def is_available():
        warnings.warn("The NVIDIA driver on your system is too old\n(found version 9000).", stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    assert refused(require_gpu).message == (
        "'cuda': PyTorch finds no GPU that it can use: The NVIDIA driver on your system is too old"
    )


@pytest.mark.parametrize(
    ("count", "found"), [(1, "1 GPU, cuda:0"), (2, "2 GPUs, cuda:0 to cuda:1")], ids=["one", "two"]
)
def test_a_number_that_no_gpu_has(monkeypatch, with_gpus, count, found):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    require_gpu(Device("cuda", count - 1))
    error = refused(require_gpu, Device("cuda", count))
    assert error.message == f"there is no 'cuda:{count}': PyTorch finds {found}"
    assert "CUDA_VISIBLE_DEVICES" in error.hint


def test_a_provider_that_is_not_loaded_is_no_reason_to_run_on_the_host(monkeypatch, with_gpus):
    """ONNX Runtime only logs that a library is missing, and goes on without the provider."""
    without = types.SimpleNamespace(get_providers=lambda: ["CPUExecutionProvider"])
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *_args, **_options: without)
    error = refused(require_device)
    assert error.message == (
        "ONNX Runtime cannot load its CUDAExecutionProvider, and would run on the host instead"
    )
    assert "print_debug_info" in error.hint


def test_a_tensor_that_pytorch_cannot_read(monkeypatch):
    use_the_host_as_cuda(monkeypatch)

    def fail(_values):
        raise RuntimeError("CUDA error: no kernel image is available for execution on the device")

    monkeypatch.setattr("ptq_cli.runtime.tapping.on_device.as_tensors", fail)
    assert "no kernel image is available" in refused(cuda._try, CUDA).message


@each_case(
    "text",
    [
        "CUDA error: out of memory",
        "CUDA failure 2: out of memory ; GPU=0",
        "BFCArena::AllocateRawInternal Failed to allocate memory for requested buffer of size 256",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    ],
)
def test_a_full_gpu_is_not_blamed_on_versions(monkeypatch, text):
    use_the_host_as_cuda(monkeypatch)

    def fail(_values):
        raise RuntimeError(text)

    monkeypatch.setattr("ptq_cli.runtime.tapping.on_device.as_tensors", fail)
    error = refused(cuda._try, CUDA)
    assert error.message == f"the memory of 'cuda' is full: {text}"
    assert error.hint.startswith("nvidia-smi shows")


def test_a_device_that_computes_nonsense(monkeypatch):
    use_the_host_as_cuda(monkeypatch)
    monkeypatch.setattr("ptq_cli.runtime.tapping.on_device.as_tensors", lambda _values: [torch.zeros(2)])
    assert (
        "computes wrong results: twice the negative of 1 and 2 is [0.0, 0.0]"
        in refused(cuda._try, CUDA).message
    )


def test_what_is_tried_works_on_the_host(monkeypatch):
    use_the_host_as_cuda(monkeypatch)
    require_device(CUDA)


@pytest.mark.gpu
def test_a_session_leaves_its_outputs_on_the_gpu():
    device = Device(require_or_skip("cuda"))
    session = Session(cuda._negation(), threads=1, place=SessionPlace(device))
    (tensor,) = as_tensors(session.run_on_device({"x": np.array([1.0, 2.0], np.float32)}))
    assert tensor.is_cuda and tensor.tolist() == [-1.0, -2.0]
    assert session.run({"x": np.array([1.0, 2.0], np.float32)})[0].tolist() == [-1.0, -2.0]


@pytest.mark.gpu
def test_a_gpu_beyond_the_last_is_refused():
    require_or_skip("cuda")
    assert "PyTorch finds" in refused(require_device, Device("cuda", torch.cuda.device_count())).message
