"""``python -m tests.golden.replay FOLDER``: on the folders here, and on damaged ones."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.golden.replay import main

FOLDER = Path(__file__).parent


@pytest.mark.parametrize("name", ["calibrators", "quantizers", "straight_through", "fixed_point", "centers"])
def test_recorded_cases_hold_or_differ_on_purpose(name, capsys):
    assert main([str(FOLDER / name)]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert not [line for line in lines if line.startswith("FAIL")]
    count = len(json.loads((FOLDER / name / "index.json").read_text())["cases"])
    assert lines[-1].startswith(f"{count} cases: ")
    assert lines[-1].endswith(", 0 are not covered, 0 fail")


@pytest.fixture
def damaged(tmp_path):
    """A copy of the calibrators with two recorded amax moved by four bins."""
    folder = tmp_path / "golden"
    shutil.copytree(FOLDER / "calibrators", folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    arrays = dict(np.load(folder / "calibrators.npz", allow_pickle=False))
    for name in ("hist_0121", "hist_0122"):
        arrays[f"{name}.out.amax"] = arrays[f"{name}.out.amax"] - np.float32(4 * 3.63 / 2048)
    np.savez_compressed(folder / "calibrators.npz", **arrays)
    return folder


def test_each_failing_case_has_a_line_and_the_status_says_so(damaged, capsys):
    assert main([str(damaged)]) == 1

    lines = capsys.readouterr().out.splitlines()
    failing = [line for line in lines if line.startswith("FAIL")]
    assert [line.split(":")[0] for line in failing] == ["FAIL hist_0121", "FAIL hist_0122"]
    assert "recorded is 3.4" in failing[0]
    assert lines[-1].endswith(", 2 fail")


def test_families_that_ptq_has_not_are_counted_and_do_not_fail(tmp_path, capsys):
    np.savez(tmp_path / "unknown.npz", x=np.zeros(1, np.float32))
    cases = [
        {"id": str(index), "file": "unknown.npz", "function": "nothing", "tags": []} for index in range(3)
    ]
    (tmp_path / "index.json").write_text(json.dumps({"cases": cases}))

    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "3 are not covered (unknown)",
        "3 cases: 0 hold, 0 differ on purpose, 3 are not covered, 0 fail",
    ]


def test_case_that_cannot_be_run_fails(tmp_path, capsys):
    np.savez(tmp_path / "calibrators.npz", x=np.zeros(1, np.float32))
    case = {"id": "odd", "file": "calibrators.npz", "function": "calibrate_weights", "params": {}, "tags": []}
    (tmp_path / "index.json").write_text(json.dumps({"cases": [case]}))

    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines()[0] == "FAIL odd: KeyError: 'inputs'"


@pytest.mark.parametrize("text", [None, "{", "[]", '{"cases": [{"file": "missing.npz"}]}'], ids=str)
def test_folder_that_cannot_be_read_is_status_2(tmp_path, capsys, text):
    if text is not None:
        (tmp_path / "index.json").write_text(text)

    assert main([str(tmp_path)]) == 2
    assert "is no folder of golden cases" in capsys.readouterr().err


def test_usage_is_status_2(capsys):
    assert main([]) == 2
    assert "usage: python -m tests.golden.replay FOLDER" in capsys.readouterr().err
