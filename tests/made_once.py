"""What takes long to make, such as a calibrated sample, is made once a run of the tests, by any worker."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

WAIT = 0.1  # seconds between two looks at the lock of another worker


def shared_base(factory: pytest.TempPathFactory) -> Path:
    """The folder that all workers of this run of the tests share."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """The folder of that name that ``make`` has filled, for tests to copy or to read.

    A folder is the lock: workers that come later wait, and one whose turn it is makes anew what another one
    failed to make.
    """
    base = shared_base(factory)
    folder, done, lock = base / name, base / f"{name}.done", base / f"{name}.lock"
    while not done.exists():
        try:
            lock.mkdir()
        except FileExistsError:
            time.sleep(WAIT)
            continue
        try:
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)
                make(folder)
                done.touch()
        finally:
            lock.rmdir()
    return folder
