"""Devices for tests: a GPU where there is one, and the way of the tensors to it where there is none."""

import pytest

from ptq_cli.core.errors import DeviceError
from ptq_cli.runtime.cuda import require_device
from ptq_cli.runtime.device import Device, parse_device


class CudaOnTheHost(Device):
    """All that is done for a GPU, done on the host: outputs are bound, handed over and counted there.

    Its kind is ``cpu``, which is where memory is bound.
    """

    is_host = False
    provider = "CPUExecutionProvider"
    provider_options: dict[str, str] = {}  # noqa: RUF012 - a property of the class it stands in for


def require_or_skip(name: str) -> str:
    """Return the device's name, or skip the test with what is missing."""
    try:
        require_device(parse_device(name))
    except DeviceError as error:
        pytest.skip(error.message)
    return name
