"""Do with a wheel and an sdist what a newcomer does: install into an empty environment, quantize the samples.

python -m tools.try_release              builds both, and tries both
python -m tools.try_release dist/*       tries files that are built already

Packages are downloaded, in the versions of constraints.txt. Besides, mypy checks a user's script with the
installed package. The output says how many seconds each step took; the first step that fails ends it.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "tools" / "typed_script.py"
# Variables by which something of the checkout or of its environment would be seen.
HIDDEN = {"PYTHONPATH", "PIP_CONSTRAINT", "MYPYPATH"}
# What the README says for each sample.
COMMANDS = {
    "cifar10_cnn": "ptq quantize model.pt --max-drop top1=0.01",
    "spoken_digits_transformer": "ptq quantize model.pt --max-drop top1=0.01",
    "shapes_detector": "ptq quantize model.onnx --max-drop map50=0.02",
    "shakespeare_language_model": "ptq quantize model.onnx --set gate.max_ratio.perplexity=1.02",
}
FIRST = "cifar10_cnn"


def main(arguments: Sequence[str]) -> int:
    """Build what is not named, try each file, and return the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        files = [Path(name).resolve() for name in arguments] or build(place / "dist")
        for number, file in enumerate(sorted(files, key=lambda path: path.suffix != ".whl")):
            # The sdist holds the same files, which a test compares, so one sample is enough for it.
            try_file(file, place / str(number), samples=list(COMMANDS) if file.suffix == ".whl" else [FIRST])
    return 0


def build(output: Path) -> list[Path]:
    """Build the wheel and the sdist of the checkout, and return their paths."""
    source = output.parent / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "build", "*.egg-info", "ptq-run"))
    python = new_environment(output.parent / "builder")
    step("pip install build", [python, "-m", "pip", "install", "--quiet", "build"], output.parent)
    step("python -m build", [python, "-m", "build", "--outdir", output, source], output.parent)
    return sorted(output.iterdir())


def try_file(file: Path, folder: Path, samples: Sequence[str]) -> None:
    """Install a wheel or an sdist alone, quantize the samples, and check a script."""
    python = new_environment(folder / "environment")
    pip: list[str | Path] = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--constraint",
        ROOT / "constraints.txt",
    ]
    step(f"pip install {file.name}", [*pip, file], folder)
    version = step("ptq --version", [python.with_name("ptq"), "--version"], folder)
    if not file.name.startswith(f"ptq_cli-{version.split()[-1]}"):
        raise SystemExit(f"{file.name} says that it is {version.strip()}")
    for name in samples:
        copy = folder / name
        shutil.copytree(ROOT / "sample_models" / name, copy, ignore=shutil.ignore_patterns("ptq-run"))
        program, *words = shlex.split(COMMANDS[name])
        said = step(f"{name}: {COMMANDS[name]}", [python.with_name(program), *words], copy)
        if "PASS: 1 gate passed" not in said or not (copy / "ptq-run" / "model_int8.onnx").is_file():
            raise SystemExit(f"{name} has no gated model:\n{said}")
    if file.suffix == ".whl":
        step("pip install mypy", [*pip, "mypy"], folder)
        shutil.copy(SCRIPT, folder / "script.py")
        step("mypy --strict script.py", [python, "-m", "mypy", "--strict", "script.py"], folder)


def new_environment(folder: Path) -> Path:
    """Make an empty environment, and return its Python."""
    venv.create(folder, with_pip=True)
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"


def step(title: str, words: Sequence[str | Path], folder: Path) -> str:
    """Run a command that sees nothing of the checkout, print its seconds, and return its stdout."""
    environment = {name: value for name, value in os.environ.items() if name not in HIDDEN}
    start = time.perf_counter()
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{title}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    print(f"{time.perf_counter() - start:7.1f} s  {title}", flush=True)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
