"""Replay NVIDIA's recorded calibrations, each case by the function that ``tests.golden.replay`` uses."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.golden.calibrators.cases import ON_PURPOSE, replay
from tests.golden.verdicts import OnPurposeError

FOLDER = Path(__file__).parent
CASES = json.loads((FOLDER / "index.json").read_text(encoding="utf-8"))["cases"]
ARRAYS = dict(np.load(FOLDER / "calibrators.npz", allow_pickle=False))

DIFFERENT = {
    "max_0023": "no data",
    "hist_0028": "percentile 0",
    "hist_0125": "zeros are the percentile",
    "hist_0069": "empty low bins",
    "hist_0123": "empty low bins",
    "hist_0146": "per channel",
    "hist_0147": "per channel",
    "hist_0148": "per channel",
    "hist_0149": "no data",
    "hist_0150": "no data",
    "hist_0151": "no data",
    "cw_0007": "entropy of weights",
    "cw_0016": "entropy of weights",
    "cw_0025": "entropy of weights",
    "cw_0008": "max of a whole weight",
    "cw_0017": "max of a whole weight",
    "cw_0026": "max of a whole weight",
}
"""The cases where ours differs on purpose. ``cases.ON_PURPOSE`` and docs/amax.md say why."""


@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in CASES])
def test_ours_agrees_or_differs_on_purpose(case):
    reason = None
    try:
        replay(case, ARRAYS)
    except OnPurposeError as error:
        reason = str(error)

    assert reason == DIFFERENT.get(case["id"])


def test_every_difference_is_met():
    assert set(DIFFERENT.values()) == set(ON_PURPOSE)


def test_selection_holds_every_kind_of_case():
    tags = {tag for case in CASES for tag in case["tags"]}
    assert {
        "growing",
        "one_batch",
        "edge_values",
        "unsigned",
        "negative",
        "zeros",
        "no_data",
        "error",
        "empty_low_bins",
        "other_bits",
        "num_bins",
        "skip_zeros",
    } <= tags
    assert {case["function"] for case in CASES} == {
        "MaxCalibrator",
        "HistogramCalibrator",
        "HistogramCalibrator_mutation",
        "calibrate_weights",
    }
    methods = {(case["function"], case["params"].get("method")) for case in CASES}
    assert {("HistogramCalibrator", method) for method in ("percentile", "entropy", "mse")} <= methods
    assert {("calibrate_weights", method) for method in ("max", "percentile", "mse")} <= methods
