"""The pages on stability and security, the workflow and the package's metadata say what the code says."""

import re
import tomllib
from pathlib import Path

import yaml

import ptq_cli
from ptq_cli.cli.main import BUG
from ptq_cli.collectors import calibration_file
from ptq_cli.core import errors
from ptq_cli.core.process import DONE, INTERRUPTED, TERMINATED
from ptq_cli.evaluation.document.analysis_document import Analysis
from ptq_cli.evaluation.document.ladder import Ladder
from ptq_cli.evaluation.document.report_document import Details, Report
from tests.each_case import each_case
from tools import environments

ROOT = Path(__file__).parents[2]
COMMANDS = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
STABILITY = (ROOT / "docs" / "stability.md").read_text(encoding="utf-8")
SECURITY = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
WORKFLOWS = ROOT / ".github" / "workflows"
WORKFLOW = (WORKFLOWS / "ci.yml").read_text(encoding="utf-8")
JOBS = yaml.safe_load(WORKFLOW)["jobs"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


FORMATS = {kind.FORMAT.name: kind.FORMAT.version for kind in (Report, Analysis, Details, Ladder)} | {
    kind.format: kind.version for kind in (calibration_file._CONTAINER,)
}


@each_case("name, version", FORMATS.items())
def test_every_format_has_its_version(name: str, version: int) -> None:
    assert re.search(rf"^\| `[\w.]+` \| `{re.escape(name)}` \| {version} \|", STABILITY, re.MULTILINE)


def test_every_public_name_is_promised() -> None:
    promised = set(re.findall(r"`(\w+)`", STABILITY.partition("## Python")[2]))
    assert set(ptq_cli.__all__) <= promised


def test_the_exit_statuses_are_those_of_the_commands() -> None:
    assert "(commands.md#exit-status)" in STABILITY
    rows = dict(re.findall(r"^\| (\d+) \| (.+?) \|$", COMMANDS, re.MULTILINE))
    said = {DONE: "done", BUG: "bug in ptq", errors.PtqError.exit_status: "error", INTERRUPTED: "Ctrl-C"}
    assert all(words in rows[str(status)] for status, words in (said | {TERMINATED: "SIGTERM"}).items())


def test_every_code_exists() -> None:
    codes = {kind.code for kind in vars(errors).values() if isinstance(kind, type) and hasattr(kind, "code")}
    named = set(re.findall(r"PTQ-[A-Z]+-\d{3}", STABILITY + SECURITY))
    assert named and named <= codes


def test_the_workflow_runs_what_make_runs() -> None:
    targets = (ROOT / "Makefile").read_text(encoding="utf-8").split("\n\n")
    rules = [part for part in targets if re.match(r"(test|lint|docs-check):", part)]
    commands = [line.strip().removeprefix("$(BIN)/") for part in rules for line in part.splitlines()[1:]]
    assert len(commands) == 9
    # The workflow runs all environments instead of a few tests in one.
    short = {"python -m tools.environments --short"}
    assert set(commands) - short <= set(re.findall(r"- run: (.+)$", WORKFLOW, re.MULTILINE))


def test_the_workflow_covers_every_supported_python_and_system() -> None:
    versions = list(environments.PYTHONS)
    for job in ("test", "environments"):
        assert JOBS[job]["strategy"]["matrix"]["python"] == versions
    matrix = JOBS["environments"]["strategy"]["matrix"]
    assert matrix["versions"] == list(environments.VERSIONS)
    assert {(item["python"], item["versions"]) for item in matrix["exclude"]} == set(environments.NOT_TRIED)
    assert PROJECT["requires-python"] == f">={versions[0]}"
    claimed = {item.rpartition(" ")[2] for item in PROJECT["classifiers"] if re.search(r"3\.\d+$", item)}
    assert claimed <= set(versions)
    assert re.search(r"^ +os: \[ubuntu-latest, macos-latest, windows-latest\]$", WORKFLOW, re.MULTILINE)
    assert "has not been run" in WORKFLOW.partition("name:")[0]
