"""Leaves out the modules and the tests that need torch where it is not installed."""

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.torch_needed import HAS_TORCH, lacks_torch, modules_that_need_torch

LEFT_OUT = frozenset[Path]() if HAS_TORCH else modules_that_need_torch()


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Whether a module is left out; others are decided elsewhere."""
    return True if collection_path in LEFT_OUT else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    """Skip a test whose fixtures need torch."""
    return (yield from _skipped_without_torch())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Skip a test that needs torch."""
    return (yield from _skipped_without_torch())


def _skipped_without_torch() -> Generator[None, object, object]:
    try:
        return (yield)
    except ModuleNotFoundError as error:
        if lacks_torch(error):
            pytest.skip(f"needs {error.name}")
        raise
