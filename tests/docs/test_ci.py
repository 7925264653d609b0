"""The files that users copy into their CI do what they say."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CI = ROOT / "docs" / "ci"
GATE = CI / "gate.sh"
WORKFLOW = (CI / "github-actions.yml").read_text(encoding="utf-8")

MakeSample = Callable[[str], Path]
RunShell = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize(
    ("arguments", "limit", "status", "said"),
    [
        ("model.onnx", "top1=1", 0, "gate: held"),
        ("model.onnx --min sqnr_db=1000", "top1=1", 3, "gate: missed"),
        ("no-such-model.onnx", "top1=1", 2, "gate: not decided"),
    ],
    ids=["held", "missed", "input-error"],
)
def test_the_script_ends_as_ptq_does(
    arguments: str, limit: str, status: int, said: str, make_sample: MakeSample, shell: RunShell
) -> None:
    folder = make_sample("spoken_digits_transformer")
    old_report = folder / "run" / "report.json"
    old_report.parent.mkdir()
    old_report.write_text("of an earlier build", encoding="utf-8")
    page = folder / "page.md"

    result = shell(f"sh {GATE} {arguments}", folder, RUN="run", MAX_DROP=limit, GITHUB_STEP_SUMMARY=str(page))

    assert result.returncode == status, result.stdout
    assert said in result.stdout
    # What is on the page is this build's report or nothing.
    cases = old_report.with_name("junit.xml")
    assert page.exists() == old_report.exists() == cases.exists() == (status in (0, 3))
    if page.exists():
        text = page.read_text(encoding="utf-8")
        assert text.startswith("### ptq report") and text.count("### ptq report") == 1


def test_the_workflow_uses_what_is_there() -> None:
    assert "\t" not in WORKFLOW
    assert "gate.sh" in WORKFLOW and "constraints.txt" in WORKFLOW and (ROOT / "constraints.txt").is_file()
    assert "MAX_DROP: top1=" in WORKFLOW and "MAX_DROP" in GATE.read_text(encoding="utf-8")
    assert "if: always()" in WORKFLOW
