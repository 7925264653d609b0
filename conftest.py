"""Leaves out the modules of tests and package that need torch where it is not installed."""

from pathlib import Path

from tests.torch_needed import HAS_TORCH, modules_that_need_torch

LEFT_OUT = frozenset[Path]() if HAS_TORCH else modules_that_need_torch()


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Whether a module is left out; others are decided elsewhere."""
    return True if collection_path in LEFT_OUT else None
