"""The files that users copy into their CI do what they say."""

import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import ptq_cli
from tests.e2e.test_packaging import BUILT
from tests.each_case import each_case
from tools import try_release
from tools.pages.page_blocks import blocks

ROOT = Path(__file__).parents[2]
CI = ROOT / "docs" / "ci"
GATE = CI / "gate.sh"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
PYTHONS = (
    "docs/ci/Containerfile",
    "action.yml",
    "docs/ci/github-actions.yml",
    "docs/ci/gitlab-ci.yml",
    ".github/workflows/release.yml",
    ".github/workflows/nightly.yml",
)

MakeSample = Callable[[str], Path]
RunShell = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize(
    ("arguments", "limit", "status", "said"),
    [
        pytest.param("model.onnx", "top1=0.9", 0, "gate passed: ", id="passed", marks=pytest.mark.nightly),
        pytest.param(
            "model.onnx --samples 16 --min sqnr_db=1000 --set evaluation.samples=20",
            "top1=0.9",
            3,
            "gate failed: ",
            id="failed",
        ),
        pytest.param("no-such-model.onnx", "top1=0.9", 2, "gate not evaluated: ", id="input-error"),
    ],
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


@pytest.mark.parametrize(
    ("arguments", "variables", "status", "said"),
    [
        ("report.json", {"MAX_DROP": "top1=0.01"}, 0, "PASS: 1 gate passed"),
        ("report.json --max-size 1kB", {"MAX_DROP": "top1=0.01"}, 3, "FAIL: 1 of 2 gates failed"),
        ("report.json", {"BASELINE": "report.json"}, 0, "size: 1 MB, unchanged"),
        ("report.json", {"MAX_DROP": "top1=abc"}, 2, "'abc' is not a number"),
        ("nowhere.json", {}, 2, "report 'nowhere.json' does not exist"),
    ],
    ids=["passed", "failed", "baseline", "no-limit", "no-report"],
)
def test_a_report_that_was_kept_is_decided(
    arguments: str, variables: dict[str, str], status: int, said: str, tmp_path: Path, shell: RunShell
) -> None:
    (tmp_path / "report.json").write_bytes((ROOT / "tests" / "golden" / "report.json").read_bytes())
    result = shell(f"sh {CI / 'gate-report.sh'} {arguments}", tmp_path, **variables)
    assert result.returncode == status, result.stdout
    assert said in result.stdout


def action_step() -> dict[str, Any]:
    """Return the step of the action that runs ptq."""
    steps = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))["runs"]["steps"]
    (found,) = (step for step in steps if step.get("id") == "quantize")
    return found


@pytest.mark.parametrize(
    ("gates", "status", "said"),
    [
        pytest.param(
            "--max-drop top1=0.9 --set evaluation.samples=20",
            0,
            "PASS: 1 gate passed",
            id="passed",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            "--min sqnr_db=1000 --set evaluation.samples=20",
            3,
            "FAIL: 1 of 1 gate failed",
            id="failed",
            marks=pytest.mark.nightly,
        ),
        pytest.param("--max-drop top1=abc", 2, "'abc' is not a number", id="no-limit"),
    ],
)
def test_the_action_ends_as_ptq_does(
    gates: str, status: int, said: str, make_sample: MakeSample, shell: RunShell
) -> None:
    folder, step = make_sample("spoken_digits_transformer"), action_step()
    given = {"MODEL": "model.onnx", "GATES": f"{gates} --set evaluation.latency=false", "RUN": "my run"}
    variables = {name: given.get(name, "") for name in step["env"]}
    output = folder / "output"
    result = shell(step["run"], folder, GITHUB_ACTION_PATH=str(ROOT), GITHUB_OUTPUT=str(output), **variables)
    assert result.returncode == status, result.stdout
    assert said in result.stdout
    assert output.read_text(encoding="utf-8").splitlines()[0] == "model=my run/model_int8.onnx"
    assert (folder / "my run" / "report.md").exists() == (status != 2)


FAKE_GH = """#!/bin/sh
echo "$@" >> calls
for word in "$@"; do
    case $word in
        --jq) printf "$COMMENTS"; exit "$STATUS" ;;
        body=@*) cat "${word#body=@}" >> posted ;;
    esac
done
"""
COMMENTS = "repos/owner/model/issues"


@pytest.mark.parametrize(
    ("comments", "status", "call"),
    [
        ("", 0, f"--method POST {COMMENTS}/7/comments"),
        ("12\\n34\\n", 0, f"--method PATCH {COMMENTS}/comments/12"),
        ("", 1, ""),
    ],
    ids=["first-build", "later-build", "fork"],
)
def test_the_comment_takes_the_place_of_its_last_one(
    comments: str, status: int, call: str, tmp_path: Path, shell: RunShell
) -> None:
    (tmp_path / "gh").write_text(FAKE_GH, encoding="utf-8")
    (tmp_path / "gh").chmod(0o755)
    variables = {
        "COMMENTS": comments,
        "STATUS": str(status),
        "NUMBER": "7",
        "NAME": "cat's model",
        "RUN": "run",
    }
    command = f"PATH={tmp_path}:$PATH GITHUB_REPOSITORY=owner/model sh {CI / 'comment.sh'}"

    def posted() -> tuple[str, str]:
        result = shell(command, tmp_path, **variables)
        assert result.returncode == 0, result.stdout
        path = tmp_path / "posted"
        return result.stdout, path.read_text(encoding="utf-8") if path.exists() else ""

    # A build that ended before its report has nothing to say.
    assert posted() == ("", "") and not (tmp_path / "calls").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "report.md").write_text("### ptq report", encoding="utf-8")
    said, text = posted()
    assert ("::warning title=ptq::" in said) == bool(status) == (not text)
    assert call in (tmp_path / "calls").read_text(encoding="utf-8")
    assert text == ("" if status else "<!-- ptq: cat's model -->\n### ptq report")


def test_the_guide_configures_hooks_that_exist() -> None:
    page = (ROOT / "docs" / "guides" / "ci.md").read_text(encoding="utf-8")
    (block,) = (found for found in blocks(page) if found.file == ".pre-commit-config.yaml")
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    (repo,) = yaml.safe_load(block.text)["repos"]
    assert repo["rev"] == f"v{ptq_cli.__version__}"
    assert [hook["id"] for hook in repo["hooks"]] == [hook["id"] for hook in hooks]
    report = repo["hooks"][0]["args"][0]
    assert re.search(repo["hooks"][0]["files"], report) and report in page.replace(block.text, "")


def test_the_container_gets_what_it_installs_and_no_more() -> None:
    """Without the file that leaves the rest out, a virtual environment of gigabytes would be in the image."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    kept = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert "*" in lines and kept == {*BUILT, "constraints.txt"}


@each_case("name", PYTHONS)
def test_ci_installs_the_builds_for_cpus(name: str) -> None:
    assert "https://download.pytorch.org/whl/cpu" in (ROOT / name).read_text(encoding="utf-8")


def test_what_ci_installs_is_pinned() -> None:
    """The container, the action and the workflows install with constraints.txt, which has every package."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"==[^,*]+", str(pin.specifier)) for pin in pins)
    versions = {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pins}
    assert len(versions) == len(pins)
    # The licence of Qualcomm's simulator lets each developer install it, and no image or lock pass it on.
    extras = (part for name, part in EXTRAS.items() if name != "qnn")
    wanted = [*PROJECT["dependencies"], *(item for part in extras for item in part)]
    for requirement in map(Requirement, wanted):
        assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), requirement


@each_case("name", PYTHONS)
def test_ci_runs_the_python_that_is_tested(name: str) -> None:
    """What is not a matrix of versions names one, which the package supports and its tests have run on."""
    text = (ROOT / name).read_text(encoding="utf-8")
    found = re.findall(r"(?:python:|python-version: \"?)(3\.\d+)", text)
    assert found and set(found) == {"3.11"}
    assert "Programming Language :: Python :: 3.11" in PROJECT["classifiers"]


def test_a_release_is_tried_with_what_the_readme_says() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    for sample, command in try_release.COMMANDS.items():
        assert f"(cd sample_models/{sample} && {command})\n" in page
    assert "\npip install .\n" in page
