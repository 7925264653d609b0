"""ONNX files with wrong bits, cut short, or with another content: an error with a code, or a model.

They are quantized in a process of their own, many in one, because what is damaged may end it.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINE = re.compile(r"\d+ (quantized|PTQ-[A-Z]+-\d{3})")
PARTS = 10


def quantize_damaged(folder: Path, first: int, last: int) -> list[str]:
    """Return what came of each file of these seeds."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.properties.damaged_models", str(folder)]
    result = subprocess.run(
        [*command, str(first), str(last)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
        text=True,
        capture_output=True,
        timeout=1500,
    )
    lines = result.stdout.splitlines()
    assert result.returncode == 0, f"seed {lines[-1:]}: {result.stderr[-3000:]}"
    return lines


def test_a_damaged_file_gives_an_error_or_a_model(tmp_path: Path):
    lines = quantize_damaged(tmp_path, 0, 100)
    assert [line for line in lines if not LINE.fullmatch(line)] == []
    assert len(lines) == 100
    # Some of the damage is not seen before the model is read, planned or run, and some does no harm.
    assert len({line.split()[1] for line in lines}) >= 5


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(PARTS))
def test_two_thousand_damaged_files(tmp_path: Path, part: int):
    count = 2000 // PARTS
    lines = quantize_damaged(tmp_path, 1000 + part * count, 1000 + (part + 1) * count)
    assert [line for line in lines if not LINE.fullmatch(line)] == []
    assert len(lines) == count
