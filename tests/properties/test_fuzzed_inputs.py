"""Inputs that nobody would write, to each command: a code or a result, and only the named output touched.

Processes of their own try some hundred inputs each, because one may end them: models, recipes, targets,
calibrations, data of each form, reports and arguments. A fault names its seed;
``python -m tests.properties.fuzz.fuzzed_inputs TEMPLATE FOLDER SEED SEED+1`` tries it again.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.properties.fuzz.kinds import KINDS

ROOT = Path(__file__).parents[2]
BY_DAY, AT_NIGHT, PARTS, OF_A_PROCESS = 60, 10_000, 20, 250


def try_inputs(folder: Path, first: int, last: int) -> Iterator[dict[str, Any]]:
    """Yield what came of each seed; where a process dies, another goes on with the next seed."""
    while first < last:
        until = min(last, first + OF_A_PROCESS)
        words = [str(folder / "template"), str(folder / f"from-{first}"), str(first), str(until)]
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "tests.properties.fuzz.fuzzed_inputs", *words],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=False,
            text=True,
            capture_output=True,
        )
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"seed"')]
        assert lines, done.stderr[-3000:]
        for tried, found in zip(lines[::2], lines[1::2], strict=False):
            yield {**tried, **found}
        if done.returncode:
            fault = f"the process ended with {done.returncode}: {done.stderr[-2000:]}"
            yield {**lines[-1], "outcome": "died", "faults": [fault]}
        first = lines[-1]["seed"] + 1


def require_no_faults(folder: Path, first: int, count: int) -> Counter[str]:
    """Assert that each input gives a code or a result, and return how often which came."""
    found = list(try_inputs(folder, first, first + count))
    assert [item for item in found if item["faults"]] == []
    assert [item["seed"] for item in found] == list(range(first, first + count))
    assert {item["kind"] for item in found} == set(KINDS)
    return Counter(item["outcome"] for item in found)


@pytest.mark.timeout(600)
def test_fuzzed_inputs_give_a_code_or_a_result(tmp_path: Path) -> None:
    outcomes = require_no_faults(tmp_path, 0, BY_DAY)
    # Some of the damage is found early, some late, and some does no harm.
    assert len(outcomes) > 10
    assert outcomes["0"] > BY_DAY // 20


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(PARTS))
def test_ten_thousand_fuzzed_inputs(tmp_path: Path, part: int) -> None:
    count = AT_NIGHT // PARTS
    require_no_faults(tmp_path, BY_DAY + part * count, count)
