"""A compiled function is kept on disk, and made again where a version of ptq named its classes otherwise."""

import subprocess
import sys
from pathlib import Path

SOURCE = """
from typing import NamedTuple

from ptq_cli.core.compiled import compiled


class Pair(NamedTuple):
    low: float
    high: float


@compiled
def width(pair):
    return pair.high - pair.low
"""


def run(folder: Path, name: str) -> str:
    """What a process prints that calls the function, and how often it found it in its cache."""
    code = (
        f"from lengths import {name}, width; print(width({name}(1.0, 3.5)));"
        "print(sum(width.dispatcher().stats.cache_hits.values()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_cache_with_classes_that_are_gone_is_made_again(tmp_path: Path) -> None:
    module = tmp_path / "lengths.py"
    module.write_text(SOURCE)
    assert run(tmp_path, "Pair") == "2.5\n0\n"
    assert run(tmp_path, "Pair") == "2.5\n1\n"
    module.write_text(SOURCE.replace("Pair", "Span"))
    assert run(tmp_path, "Span") == "2.5\n0\n"
    assert run(tmp_path, "Span") == "2.5\n1\n"
