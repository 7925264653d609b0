"""Devices for tests: a GPU where there is one, and the host in its place where there is none."""

import pytest
import torch

from ptq_cli.core.errors import DeviceError
from ptq_cli.runtime import cuda
from ptq_cli.runtime.cuda import require_device
from ptq_cli.runtime.machine import HOST, Device, parse_device
from ptq_cli.runtime.tapping import on_device


def use_the_host_as_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``cuda`` and ``cuda:1`` be two GPUs whose memory and processor are the host's.

    All that is done for a GPU is done: outputs are bound, handed over by DLPack, and counted by PyTorch.
    """
    monkeypatch.setattr(Device, "provider", HOST.provider)
    monkeypatch.setattr(Device, "provider_options", HOST.provider_options)
    monkeypatch.setattr(Device, "memory", HOST.memory)
    monkeypatch.setattr(torch.version, "cuda", "0.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(on_device, "free_memory", lambda device: 8 << 30)
    # Where the extra is installed its kernels would look for a GPU.
    monkeypatch.setattr(cuda, "has_kernel_compiler", lambda: False)


def require_or_skip(name: str) -> str:
    """Return the device's name, or skip the test with what is missing."""
    try:
        require_device(parse_device(name))
    except DeviceError as error:
        pytest.skip(error.message)
    return name
