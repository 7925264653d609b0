"""A test in a process of its own: it raises signals, which end a process in which others ran before.

Workers of pytest-xdist died without a word at the first signal to themselves, in runs of all tests alone.
"""

import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

IS_OWN = "PTQ_TEST_IN_OWN_PROCESS"
ROOT = Path(__file__).parents[1]


def own_process(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test by itself, in a new process, with all its fixtures there."""

    @wraps(test)
    def run(*args: Any, request: pytest.FixtureRequest, **fixtures: Any) -> None:
        if os.environ.get(IS_OWN):
            test(*args, **fixtures)
            return
        node = request.node.nodeid
        words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", node]
        environment = {**os.environ, IS_OWN: "1"} | {"PYTEST_ADDOPTS": ""}
        environment.pop("PYTEST_XDIST_WORKER", None)
        done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    own = inspect.signature(test)
    asked = inspect.Parameter("request", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = own.replace(parameters=[*own.parameters.values(), asked])  # type: ignore[attr-defined]
    return run
