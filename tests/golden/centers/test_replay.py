"""That the replay of soft-to-hard cases notices other results."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.each_case import each_case
from tests.golden.centers.cases import replay
from tests.golden.verdicts import DiffersError

FOLDER = Path(__file__).parent
CASES = json.loads((FOLDER / "index.json").read_text(encoding="utf-8"))["cases"]
ARRAYS = dict(np.load(FOLDER / "soft_to_hard.npz", allow_pickle=False))


@each_case(
    "group, output, factor",
    [
        ("outputs", "soft", 1.00001),
        ("outputs", "hard", 1.5),
        ("grads", "w", 1.00001),
        ("grads", "w_unit", 1.1),
    ],
)
def test_other_results_fail(group, output, factor):
    case = next(case for case in CASES if case["name"] == "s2h_0001")
    key = case[group][output]
    with pytest.raises(DiffersError, match=output):
        replay(case, {**ARRAYS, key: ARRAYS[key] * np.float32(factor)})
