"""``python -m tests.golden.replay FOLDER``: on the folders here, and on damaged ones."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.each_case import each_case
from tests.golden.replay import FAMILIES, HOLDS, ON_PURPOSE, main, replay

FOLDER = Path(__file__).parent
DOCS = FOLDER.parents[1] / "docs"
RECORDED = {path.parent.name: path for path in FOLDER.glob("*/*.npz")}
# Where the differences of a family are explained; those of the others in quantizers.md.
PAGES = {"calibrators": "amax.md"}


def cases_of(name):
    return json.loads((FOLDER / name / "index.json").read_text(encoding="utf-8"))["cases"]


# The cases where ours differs on purpose. ``cases.ON_PURPOSE`` and docs/amax.md say why.
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


# No case of the selection meets these; ``calibrators/test_replay.py`` makes one.
NOT_RECORDED = {"few bins a level"}


@pytest.fixture(scope="module")
def verdicts():
    """The verdict and the reason of each recorded case of a family, replayed once."""
    found = {}

    def of(name):
        if name not in found:
            arrays = dict(np.load(RECORDED[name], allow_pickle=False))
            found[name] = {case["id"]: replay(case, arrays) for case in cases_of(name)}
        return found[name]

    return of


@each_case("name", sorted(RECORDED))
def test_recorded_cases_hold_or_differ_on_purpose(name, verdicts):
    odd = {key: found for key, found in verdicts(name).items() if found[0] not in (HOLDS, ON_PURPOSE)}
    assert odd == {}


def test_the_calibrations_that_differ_are_these(verdicts):
    found = verdicts("calibrators").items()
    assert {key: reason for key, (verdict, reason) in found if verdict == ON_PURPOSE} == DIFFERENT


@pytest.mark.parametrize("page", ["amax.md", "quantizers.md"])
def test_the_page_lists_the_differences_that_are_met_and_no_others(page, verdicts):
    names = [name for name in RECORDED if PAGES.get(name, "quantizers.md") == page]
    explained = {reason for name in names for reason in FAMILIES[RECORDED[name].name].ON_PURPOSE}
    met = {reason for name in names for verdict, reason in verdicts(name).values() if verdict == ON_PURPOSE}
    text = (DOCS / page).read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| difference \|.*\n\| ---.*\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert set(re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)) == explained
    assert explained - met == NOT_RECORDED & explained


def test_a_folder_is_replayed_and_counted(capsys):
    assert main([str(FOLDER / "straight_through")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert not [line for line in lines if line.startswith("FAIL")]
    assert lines[-1].startswith(f"{len(cases_of('straight_through'))} cases: ")
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
