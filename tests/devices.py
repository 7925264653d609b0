"""Tests that need a GPU are skipped where there is none, and say what is missing."""

import pytest

from ptq_cli.core.errors import DeviceError
from ptq_cli.runtime.cuda import require_device
from ptq_cli.runtime.device import parse_device


def require_or_skip(name: str) -> str:
    """Return the device's name, or skip the test with what is missing."""
    try:
        require_device(parse_device(name))
    except DeviceError as error:
        pytest.skip(error.message)
    return name
