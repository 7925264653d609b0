"""What differs from QKeras on purpose, and that the replay notices other results."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.each_case import each_case
from tests.golden.fixed_point.cases import replay
from tests.golden.verdicts import DiffersError, OnPurposeError

FOLDER = Path(__file__).parent
CASES = json.loads((FOLDER / "index.json").read_text(encoding="utf-8"))["cases"]
ARRAYS = dict(np.load(FOLDER / "qkeras.npz", allow_pickle=False))


def test_two_cases_differ_on_purpose():
    reasons = {}
    for case in CASES:
        try:
            replay(case, ARRAYS)
        except OnPurposeError as error:
            reasons[case["name"]] = str(error)
    assert reasons == {"qb_0431": "infinite input", "err_0001": "negative integer"}


@each_case("name", ["qb_0001", "qb_0385", "sr_0001", "sr_0008"])
def test_other_results_fail(name):
    case = next(case for case in CASES if case["name"] == name)
    damaged = dict(ARRAYS)
    for key in case["outputs"].values():
        damaged[key] = damaged[key] + np.float32(0.25)
    with pytest.raises(DiffersError):
        replay(case, damaged)
