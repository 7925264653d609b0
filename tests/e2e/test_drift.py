"""``ptq drift``: new data beside a calibration, from the first look to the merged calibration."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptq_cli
from ptq_cli.collectors.calibration_file import load_calibration, statistics_digest
from tests.e2e.conftest import Ptq, Refuse, make_arrays


@pytest.fixture
def days(folder: Path, ptq: Ptq) -> None:
    """A day like those before, a brighter one, and one with a broken sample; and a larger calibration."""
    np.savez("calib.npz", x=make_arrays(40, seed=1)["x"])
    assert ptq("calibrate model.onnx --data calib.npz").status == ptq("export").status == 0
    x = make_arrays(120, seed=3)["x"]
    np.savez("same.npz", x=x)
    np.savez("bright.npz", x=1.2 * x + 1.5)
    broken = x.copy()
    broken[37, 0, 2, 2] = np.nan
    np.savez("broken.npz", x=broken)


@pytest.mark.usefixtures("days")
def test_days_like_before_pass_and_others_fail(folder: Path, ptq: Ptq) -> None:
    same = ptq("drift same.npz")
    assert (same.status, same.err) == (0, "")
    assert "compared 120 samples with 40 of the calibration: " in same.out
    assert "PASS: no tensor has moved further than chance explains\n" in same.out
    assert same.out.endswith("wrote ptq-run/drift.json and drift.html\n")
    bright = ptq("drift bright.npz")
    assert bright.status == 3
    assert re.search(r"FAIL: 'x' has moved by \d+\.\d steps of 8 bits, chance explains ", bright.out)
    document = json.loads((folder / "ptq-run/drift.json").read_text())
    x = next(item for item in document["tensors"] if item["name"] == "x")
    assert (document["verdict"], document["exported"], x["movement"]["moved"]) == ("fail", True, True)
    assert x["movement"]["interval"]["low"] < x["movement"]["distance"] < x["movement"]["interval"]["high"]
    assert x["clipped"] > 0.001 > x["calibration_clipped"]
    assert x["sqnr_db"] < x["calibration_sqnr_db"]
    assert document["expected"]["sqnr_db"] < document["expected"]["calibration_db"] - 3
    page = (folder / "ptq-run/drift.html").read_text()
    assert 'aria-label="Histograms of x, of the calibration and of the new data"' in page


@pytest.mark.usefixtures("days")
def test_the_remedy_that_is_named_works(folder: Path, ptq: Ptq) -> None:
    """The commands are run as they are printed; the merged statistics are those of one calibration of all."""
    before = ptq("drift bright.npz --max-clipped 1%")
    commands = re.findall("^hint: (ptq .*)$", before.err, re.MULTILINE)
    assert [shlex.split(command)[1] for command in commands] == ["calibrate", "merge", "export"]
    for command in commands:
        assert ptq(command.removeprefix("ptq ")).status == 0
    parts = [np.load(name)["x"] for name in ("calib.npz", "bright.npz")]
    np.savez("both.npz", x=np.concatenate(parts))
    assert ptq("calibrate model.onnx --data both.npz --run both").status == 0
    merged, both = (
        load_calibration(Path(run) / "calibration.safetensors") for run in ("ptq-run-merged", "both")
    )
    assert merged.provenance.samples == both.provenance.samples == 160
    assert statistics_digest(merged.statistics) == statistics_digest(both.statistics)
    assert ptq("drift bright.npz --run ptq-run-merged --max-clipped 1%").status == 0
    assert ptq("evaluate --run ptq-run-merged --data eval.npz").status == 0


@pytest.mark.usefixtures("days")
def test_calibrations_that_do_not_merge(ptq: Ptq, refuse: Refuse) -> None:
    assert ptq("calibrate model.onnx --data same.npz --method max --run max").status == 0
    refuse("merge ptq-run max --run m", "PTQ-MERGE-001", "not calibrations of the same model", "method")
    assert ptq("calibrate model.pt --arch model.py:build --data same.npz --run other").status == 0
    refuse("merge ptq-run other --run m", "PTQ-MERGE-001", "not calibrations of the same model")


LIMITS = {
    "nothing clipped, and no other limit": ("same.npz --max-clipped 5%", 0, "PASS: at most 5 % clipped"),
    "clipped": ("bright.npz --max-clipped 0.1%", 3, "is clipped, more than 0.1 %; so"),
    "a share": ("bright.npz --max-clipped 0.9", 0, "PASS: at most 90 % clipped"),
    "noise": ("bright.npz --min-expected-sqnr 60", 3, "dB, below 60 dB"),
    "both kept": ("same.npz --max-clipped 5% --min-expected-sqnr 10", 0, "clipped and at least 10 dB"),
    "inputs only": ("bright.npz --inputs-only", 3, "FAIL: 'x' has moved by"),
    "inputs only, as before": ("same.npz --inputs-only", 0, "expected SQNR of the inputs"),
    "quiet": ("bright.npz --top 1", 3, "1 of "),
}


@pytest.mark.usefixtures("days")
@pytest.mark.parametrize(("words", "status", "says"), LIMITS.values(), ids=LIMITS.keys())
def test_limits(ptq: Ptq, words: str, status: int, says: str) -> None:
    outcome = ptq(f"drift {words}")
    assert (outcome.status, says in outcome.out) == (status, True), outcome


@pytest.mark.usefixtures("days")
def test_a_broken_sample_is_named_and_the_others_are_compared(ptq: Ptq) -> None:
    outcome = ptq("drift broken.npz --max-clipped 50%")
    assert outcome.status == 3
    assert "hint" not in outcome.err
    assert "FAIL: 1 value of 'x' is NaN or infinite, first in the batch of sample 'broken.npz[" in outcome.out
    assert "compared 120 samples" in outcome.out


@pytest.mark.usefixtures("days")
def test_what_cannot_be_decided_is_said(ptq: Ptq) -> None:
    few = ptq("drift same.npz --samples 10")
    assert (few.status, "undecided: 10 samples are too few to tell drift from chance" in few.out) == (0, True)
    assert "warning: drift was not decided" in few.err
    assert ptq("calibrate model.onnx --data calib.npz --method max --run max").status == 0
    ranges = ptq("drift bright.npz --run max")
    assert (ranges.status, "kept only ranges" in ranges.out) == (0, True)
    assert "decided from the calibration, because the run has no quantized model" in ranges.out
    document = json.loads(ptq("drift bright.npz --run max --max-clipped 0.1% --json").out)
    x = next(item for item in document["tensors"] if item["name"] == "x")
    assert (document["verdict"], x["movement"], x["calibration_clipped"]) == ("fail", None, None)
    assert x["high"] > x["calibration_high"]


REFUSED: dict[str, tuple[str, str, str]] = {
    "no calibration": ("drift same.npz --run nothing", "PTQ-RUN-001", "ptq calibrate"),
    "no data": ("drift missing.npz", "PTQ-FILE-001", "missing.npz"),
    "not a share": ("drift same.npz --max-clipped much", "PTQ-GATE-001", "'much' is not a share"),
    "more than all": ("drift same.npz --max-clipped 150%", "PTQ-GATE-001", "1.5 is not a share"),
    "not a number": ("drift same.npz --min-expected-sqnr nan", "PTQ-GATE-001", "nan dB"),
    "weights alone": ("drift same.npz --run weights", "PTQ-CALIB-004", "no range depends on data"),
    "over the data": ("drift ptq-run/drift.json", "PTQ-USAGE-001", "would overwrite the data"),
}


@pytest.mark.usefixtures("days")
@pytest.mark.parametrize(("words", "code", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_refused(ptq: Ptq, refuse: Refuse, words: str, code: str, says: str) -> None:
    if "weights" in words:
        assert ptq("calibrate model.onnx --preset w4_block32 --run weights").status == 0
    refuse(words, code, says)


@pytest.mark.usefixtures("days")
def test_another_model_is_refused(ptq: Ptq, refuse: Refuse) -> None:
    assert ptq("calibrate model.pt --arch model.py:build --data calib.npz --run other").status == 0
    Path("other/calibration.safetensors").rename("ptq-run/calibration.safetensors")
    refuse("drift same.npz", "PTQ-CALIB-003", "not the model that was calibrated")


@pytest.mark.usefixtures("folder")
def test_from_python() -> None:
    x: Any = make_arrays(40, seed=4)["x"]
    assert ptq_cli.drift({"x": x}, max_clipped=0.5).drift.verdict == "pass"
    found = ptq_cli.drift(x + 2.0, inputs_only=True, max_clipped=0.0).drift
    assert (found.verdict, [item.name for item in found.tensors]) == ("fail", ["x"])
