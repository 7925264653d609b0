"""``allow_nonfinite``: NaN and infinities are counted, and ranges come from the finite values."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptq_cli.collectors.tensor_statistics import NonFinite
from tests.e2e.conftest import statistics_in
from tests.unit.plan.graphs import build, serialized

ALLOWED = "calibrate model.onnx --data bad.npz --set calibration.allow_nonfinite=true"


@pytest.fixture
def bad(folder: Path) -> Path:
    with np.load(folder / "calib.npz") as arrays:
        x = arrays["x"].copy()
    x[3, 1, 2, 4] = np.nan
    x[7, 0, 0, 0], x[9, 2, 5, 5] = np.inf, -np.inf
    np.savez(folder / "bad.npz", x=x)
    return folder


def test_with_it_they_are_counted_and_left_out_of_the_range(bad: Path, ptq: Any) -> None:
    outcome = ptq(ALLOWED)

    assert outcome.status == 0
    assert "warning: 'x' contained 1 NaN, 1 +Inf and 1 -Inf; its range leaves them out" in outcome.out
    with np.load(bad / "bad.npz") as arrays:
        x = arrays["x"]
    found = statistics_in(bad)["x"]
    assert found.nonfinite == NonFinite(1, 1, 1)
    assert (found.low, found.high) == (x[np.isfinite(x)].min(), x[np.isfinite(x)].max())
    assert found.count == x.size - 3


def test_they_are_shown_with_a_warning(bad: Path, ptq: Any) -> None:
    assert ptq(ALLOWED).status == 0

    for words in ("inspect", "inspect --tensor x"):
        assert "warning: 'x' contained 1 NaN, 1 +Inf and 1 -Inf (0.13 % of its values)" in ptq(words).out
    tensor = json.loads(ptq("inspect --json").out)["tensors"][0]
    assert tensor["nonfinite"] == {"nan": 1, "positive": 1, "negative": 1}
    assert json.loads(ptq("inspect --tensor x --json").out)["tensor"]["nonfinite"]["nan"] == 1
    result = json.loads(ptq(f"{ALLOWED} --json").out)["nonfinite"]
    assert result["x"] == {"nan": 1, "positive": 1, "negative": 1}
    assert ptq("export").status == 0


def test_a_model_that_makes_them_is_refused_or_counted(folder: Path, ptq: Any, refuse: Any) -> None:
    text = "(float[n,3,8,8] x) => (float[n,3,8,4] y) <float[8,4] w> { log = Log(x) [fc] y = MatMul(log, w) }"
    (folder / "log.onnx").write_bytes(serialized(build(text)))
    with np.load(folder / "calib.npz") as arrays:
        negative = np.count_nonzero(arrays["x"] < 0)
    refuse("calibrate log.onnx --data calib.npz --run new", "PTQ-CALIB-001", "tensor 'log' is nan at ")

    assert (
        ptq("calibrate log.onnx --data calib.npz --run new --set calibration.allow_nonfinite=true").status
        == 0
    )

    assert statistics_in(folder, "new")["log"].nonfinite == NonFinite(nan=negative)


@pytest.mark.parametrize("method", ["histogram", "max"])
def test_without_any_finite_value_the_export_says_so(folder, ptq, refuse, method, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    np.savez(folder / "bad.npz", x=np.full((4, 3, 8, 8), np.nan, np.float32))
    assert ptq(f"{ALLOWED} --method {method}").status == 0

    shown, explained = ptq("inspect"), ptq("inspect --tensor x")

    for outcome in (shown, explained):
        assert outcome.status == 0
        assert "'x' contained 768 NaN and no finite value; ptq export will fail" in outcome.out
    assert "not finite" in shown.out
    refuse("export", "PTQ-CALIB-001", "tensor 'x' had no finite value in any sample")
