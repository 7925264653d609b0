"""Run the tests with other Pythons and other versions of the dependencies, and print what passed.

python -m tools.environments                                    all that this machine has
python -m tools.environments --python 3.12 --versions lowest    one of them
python -m tools.environments --short                            few tests with one other Python, for make test

A range in pyproject.toml is a promise, which this command checks. ``lowest`` is the lower end of each range,
``pinned`` what constraints.txt says, ``newest`` what the index has. Pythons are looked for on the PATH and
among those of pyenv. Where torch would come with gigabytes of CUDA, it is left out, with its tests, unless
``--cuda`` is given.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.tables import table

ROOT = Path(__file__).parent.parent
PLACE = ROOT / ".environments"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
VERSIONS = ("lowest", "pinned", "newest")
NOT_TRIED = {("3.14", "lowest"): "the lowest versions have no wheels for it"}
USERS_EXTRAS = ("hub", "openvino", "parquet", "plot")
# What only `make lint` and tests that skip without it use.
NOT_IN_TESTS = {
    "ai-edge-model-explorer",
    "import-linter",
    "mkdocs",
    "mkdocs-material",
    "mypy",
    "pytest-cov",
    "ruff",
}
NEED_TORCH = {"torch", "torchmetrics", "transformers"}
CUDA = ("nvidia-", "cuda-", "triton")
SHORT = ("tests/unit/core", "tests/unit/recipe", "tests/unit/calibdata", "tests/unit/qdq")
TESTS = ("-m", *shlex.split("pytest -p no:cacheprovider -n 2 --dist worksteal -m 'not nightly' -rfEs"))
FEWEST = 3600
FEWEST_SHORT = 700  # Tests that have to pass: one that is left out by mistake fails nothing else
COUNTS = re.compile(r"(\d+) (passed|failed|error|skipped)")
HIDDEN = {"PYTHONPATH", "PIP_CONSTRAINT", "VIRTUAL_ENV"}


@dataclass(frozen=True, kw_only=True)
class Environment:
    """A Python with a set of versions."""

    python: str
    versions: str
    interpreter: Path

    @property
    def folder(self) -> Path:
        """Where its packages are."""
        return PLACE / f"{self.python}-{self.versions}"

    @property
    def own_python(self) -> Path:
        """The interpreter that sees its packages."""
        return self.folder / ("Scripts" if os.name == "nt" else "bin") / "python"

    @property
    def log(self) -> Path:
        """What pip and pytest say."""
        return PLACE / f"{self.folder.name}.log"


def requirements(versions: str, *, has_torch: bool) -> list[str]:
    """What is installed besides the project, as pip reads it; tools of the tests are pinned or the newest.

    >>> [text for text in requirements("lowest", has_torch=False) if text.startswith("click")]
    ['click==8.4']
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    ranges = [*project["dependencies"], *(text for name in USERS_EXTRAS for text in extras[name])]
    names = {canonicalize_name(Requirement(text).name) for text in ranges} | NOT_IN_TESTS
    tools = [text for text in extras["dev"] if canonicalize_name(Requirement(text).name) not in names]
    wanted = [*(map(lowest, ranges) if versions == "lowest" else ranges), *tools]
    return [
        text for text in wanted if has_torch or canonicalize_name(Requirement(text).name) not in NEED_TORCH
    ]


def lowest(text: str) -> str:
    """The lower end of a range.

    >>> lowest("numpy>=2.0; python_version < '3.13'")
    'numpy==2.0; python_version < "3.13"'
    """
    requirement = Requirement(text)
    (floor,) = (part.version for part in requirement.specifier if part.operator == ">=")
    marker = f"; {requirement.marker}" if requirement.marker else ""
    return f"{requirement.name}=={floor}{marker}"


def find_python(version: str) -> Path | None:
    """The interpreter of a version, on the PATH or among those of pyenv."""
    on_path = shutil.which(f"python{version}")
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = [Path(on_path)] if on_path else []
    for path in (*found, *sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)):
        # One of pyenv's on the PATH may only say that its version is not chosen.
        asked = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        if asked.stdout.startswith(f"Python {version}."):
            return path
    return None


def main(arguments: Sequence[str]) -> int:
    """Try the environments that are asked for, print a table, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.environments")
    parser.add_argument("--python", action="append", choices=PYTHONS)
    parser.add_argument("--versions", action="append", choices=VERSIONS)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--cuda", action="store_true")
    asked = parser.parse_args(arguments)
    pythons, versions = asked.python or PYTHONS, asked.versions or VERSIONS
    if asked.short:
        running = f"{sys.version_info.major}.{sys.version_info.minor}"
        pythons = [name for name in pythons if name != running and find_python(name)][:1]
        versions = ["pinned"]
        if not pythons:
            print("environments: skipped, because this machine has no other Python that ptq supports")
    PLACE.mkdir(exist_ok=True)
    results = [
        try_environment(made, short=asked.short, cuda=asked.cuda) for made in environments(pythons, versions)
    ]
    if results:
        print(table(("Python", "versions", "torch", "passed", "failed", "skipped", "seconds"), results))
    return 0 if all(row[4] == "0" for row in results) else 1


def environments(pythons: Sequence[str], versions: Sequence[str]) -> Iterator[Environment]:
    """What this machine has of them; the others are named."""
    for python in pythons:
        interpreter = find_python(python)
        if interpreter is None:
            print(f"Python {python}: skipped, because this machine does not have it", flush=True)
            continue
        for name in versions:
            if (python, name) in NOT_TRIED:
                print(f"Python {python}, {name}: skipped, because {NOT_TRIED[python, name]}", flush=True)
            else:
                yield Environment(python=python, versions=name, interpreter=interpreter)


def try_environment(made: Environment, *, short: bool, cuda: bool) -> tuple[str, ...]:
    """Make an environment, run the tests in it, and return the row of the table."""
    made.log.write_text("", encoding="utf-8")
    has_torch = install(made, keep=short, cuda=cuda)
    start = time.perf_counter()
    status = run(made, [*TESTS, *(SHORT if short else ())], must_pass=False)
    seconds = time.perf_counter() - start
    said = made.log.read_text(encoding="utf-8")
    counts = {kind: int(number) for number, kind in COUNTS.findall(said.splitlines()[-1])}
    passed, failed = counts.get("passed", 0), counts.get("failed", 0) + counts.get("error", 0)
    if passed < (FEWEST_SHORT if short else FEWEST):
        print(f"{made.folder.name}: only {passed} tests passed", flush=True)
        failed = failed or 1
    if status:
        print(said[-8000:], flush=True)
        failed = failed or 1
    torch = "yes" if has_torch else "no"
    return (
        made.python,
        made.versions,
        torch,
        str(passed),
        str(failed),
        str(counts.get("skipped", 0)),
        f"{seconds:.0f}",
    )


def install(made: Environment, *, keep: bool, cuda: bool) -> bool:
    """Make or renew an environment, unless a kept one is as asked, and return whether it has torch."""
    stamp = made.folder / "installed.json"
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    asked = {
        "requirements": requirements(made.versions, has_torch=True),
        "pins": pins,
        "short": keep,
        "cuda": cuda,
    }
    old = json.loads(stamp.read_text(encoding="utf-8")) if stamp.is_file() else {}
    if old.get("asked") != asked:
        run(made, ["-m", "venv", "--clear", made.folder], made.interpreter)
    elif keep:
        return bool(old["torch"])
    has_torch = not keep and (cuda or not brings_cuda(made))
    pip(made, "--upgrade-strategy", "eager", "--upgrade", *requirements(made.versions, has_torch=has_torch))
    pip(made, "--no-deps", "--no-build-isolation", "--editable", ".")
    stamp.write_text(json.dumps({"asked": asked, "torch": has_torch}), encoding="utf-8")
    return has_torch


def brings_cuda(made: Environment) -> bool:
    """Whether the index has torch as a build for CUDA only."""
    report = made.folder / "torch.json"
    torch = [
        text for text in requirements(made.versions, has_torch=True) if Requirement(text).name == "torch"
    ]
    pip(made, "--dry-run", "--no-deps", "--ignore-installed", "--report", report, *torch)
    (found,) = json.loads(report.read_text(encoding="utf-8"))["install"]
    needed = [Requirement(text) for text in found["metadata"].get("requires_dist", ())]
    return any(
        item.name.startswith(CUDA) and (item.marker is None or item.marker.evaluate({"extra": ""}))
        for item in needed
    )


def pip(made: Environment, *words: str | Path) -> None:
    """Install something; the process ends if that fails."""
    pinned = ["--constraint", "constraints.txt"] if made.versions == "pinned" else []
    run(made, ["-m", "pip", "install", "--only-binary", ":all:", *pinned, *words])


def run(
    made: Environment, words: Sequence[str | Path], python: Path | None = None, *, must_pass: bool = True
) -> int:
    """Run a Python in the checkout, add what it says to the log, and return its exit status."""
    variables = {name: value for name, value in os.environ.items() if name not in HIDDEN}
    with made.log.open("a", encoding="utf-8") as file:
        done = subprocess.run(
            [python or made.own_python, *words],
            cwd=ROOT,
            env=variables,
            stdout=file,
            stderr=file,
            check=False,
        )
    if must_pass and done.returncode:
        said = made.log.read_text(encoding="utf-8")[-4000:]
        raise SystemExit(f"{made.folder.name}: exit status {done.returncode}; see {made.log}\n{said}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
