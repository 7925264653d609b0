"""One hypothesis profile for all: the same examples on every machine, however busy it is."""

import gc
import sys
from collections.abc import Iterator
from functools import cache

import pytest
from hypothesis import settings

settings.register_profile("ptq", deadline=None, derandomize=True)
settings.load_profile("ptq")


@pytest.fixture(scope="session", autouse=True)
def one_table_of_operators() -> Iterator[None]:
    """PyTorch's exporter makes its table of operators for each model, which takes longer than a small model.

    Nothing that ptq calls changes the table, so the models of all tests share one.
    """
    if "torch" not in sys.modules:
        yield
        return
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(cache(ONNXRegistry.from_torchlib)))
        yield


def pytest_configure() -> None:
    """Let the garbage collector rest while modules are imported: nothing of them is garbage."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Start the garbage collector again, for what the tests make: some of them measure memory."""
    gc.freeze()
    gc.enable()
