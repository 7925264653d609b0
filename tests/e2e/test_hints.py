"""Whoever follows the hint of an error gets rid of it: likely errors, and their hints as printed."""

from pathlib import Path

import numpy as np
import pytest

from tests.each_case import table

NEW = "--data calib.npz --run new"


@pytest.fixture
def data(folder: Path) -> Path:
    """Data as people bring it: under other names, with a NaN, without labels."""
    with np.load(folder / "calib.npz") as arrays:
        x, label = arrays["x"], arrays["label"]
    holed = x.copy()
    holed[3, 0, 0, 0] = np.nan
    np.savez(folder / "nan.npz", x=holed)
    np.savez(folder / "two.npz", image=x, y=label)
    np.savez(folder / "many.npz", x=np.concatenate([x] * 5))
    return folder


@pytest.mark.parametrize(
    ("words", "code", "hint"),
    table("""
    recipe init model.pt -o new.toml | PTQ-MODEL-003 | --arch model.py:build
    calibrate model.onnx --data nan.npz --run new | PTQ-DATA-008 | --set calibration.allow_nonfinite=true
    calibrate model.onnx --data two.npz --set data.rename.image=x | PTQ-DATA-002 | --set data.rename.y=label
    gate report.json | PTQ-USAGE-001 | --max-drop top1=0.01
    tune model.onnx --data many.npz --run new | PTQ-TUNE-001 | --budget sqnr_db=30
    recipe init model.onnx -o old.toml | PTQ-FILE-002 | --force
    merge run-1 --run all | PTQ-CALIB-005 | --partial
    export --run ranges --amax percentile | PTQ-CALIB-004 | --amax max
"""),
)
def test_the_flags_of_a_hint_are_what_was_missing(words, code, hint, data, ptq):
    (data / "old.toml").touch()
    if words.startswith("gate"):
        # Without limits of its own.
        assert ptq("evaluate --eval-data eval.npz").status == 0
        words = words.replace("report", "ptq-run/report")
    if "run-1" in words:
        assert (
            ptq(
                "calibrate model.onnx --data calib.npz --set data.batch_size=4 --shard 1/2 --run run-1"
            ).status
            == 0
        )
    if "ranges" in words:
        assert ptq("calibrate model.onnx --data calib.npz --method max --run ranges").status == 0
    outcome = ptq(words)
    assert (outcome.status, outcome.err.splitlines()[0].split()[1]) == (2, f"{code}:"), outcome
    assert hint in outcome.err.splitlines()[1], outcome.err
    followed = ptq(f"{words} {hint}")
    assert followed.status in (0, 3), followed


@pytest.mark.parametrize(
    ("words", "code", "hint", "followed"),
    [
        (
            "export --run new",
            "PTQ-RUN-001",
            "run ptq calibrate first",
            (f"calibrate model.onnx {NEW}", "export --run new"),
        ),
        (
            "verify model.onnx",
            "PTQ-MODEL-008",
            "ptq-run/model_int8.onnx",
            ("verify ptq-run/model_int8.onnx",),
        ),
        (
            "export --exclude 'head.*'",
            "PTQ-RECIPE-003",
            "ptq inspect",
            ("inspect model.onnx", "export --exclude fc"),
        ),
        (
            "inspect --tensor relu2",
            "PTQ-RECIPE-004",
            "ptq inspect --run ptq-run lists",
            ("inspect", "inspect --tensor relu"),
        ),
        (
            f"calibrate model.onnx {NEW} --target tensort",
            "PTQ-RECIPE-004",
            "tensorrt",
            (f"calibrate model.onnx {NEW} --target tensorrt",),
        ),
    ],
)
def test_the_commands_of_a_hint_lead_on(words, code, hint, followed, folder, ptq):
    outcome = ptq(words)
    assert (outcome.status, outcome.err.splitlines()[0].split()[1]) == (2, f"{code}:"), outcome
    assert hint in outcome.err.splitlines()[1], outcome.err
    for line in followed:
        told = ptq(line)
        assert told.status == 0, told
