"""What is built and installed: the same files from a checkout and from an sdist, presets included."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from ptq_cli.recipe.recipe_layers import preset_names
from tools.try_release import COMMANDS

ROOT = Path(__file__).parents[2]
BUILT = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "ptq_cli", "configs")
FROM_HERE = f"""
from ptq_cli.recipe.recipe_layers import PRESETS, preset_layer, preset_names
assert list(preset_names()) == {list(preset_names())} and preset_layer("int8_ort_cpu").table
print(PRESETS)
"""


def run(*words: object, folder: Path) -> str:
    """Run a command that must see nothing of the checkout but what is installed."""
    hidden = {"PYTHONPATH", "PIP_CONSTRAINT"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    line = [str(word) for word in words]
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def build(kind: str, source: Path, output: Path) -> Path:
    """Build with the backend of ``pyproject.toml``, without isolation and without a download."""
    code = f"import setuptools.build_meta as backend; backend.build_{kind}({str(output)!r})"
    output.mkdir()
    run(sys.executable, "-c", code, folder=source)
    (path,) = output.iterdir()
    return path


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of what a build reads; a build leaves files in its source."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in BUILT:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", checkout, tmp_path_factory.mktemp("built") / "wheel")


def files_of(wheel: Path) -> dict[str, bytes]:
    """Return the files of a wheel by name, without those that say how it was built."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        return {name: archive.read(name) for name in names}


def files_in(folder: Path, where: str) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {f"{where}/{path.relative_to(folder).as_posix()}": path.read_bytes() for path in paths}


def environment_in(folder: Path) -> tuple[Path, Path]:
    """Make an environment that has the dependencies of this one; return its Python and its ``ptq``."""
    venv.create(folder)
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    python = programs / ("python.exe" if os.name == "nt" else "python")
    places = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", folder=folder)
    # Without pip: beside Python 3.11's comes a setuptools that is too old.
    dependencies = "\n".join({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    (Path(places) / "dependencies.pth").write_text(dependencies, encoding="utf-8")
    return python, programs / ("ptq.exe" if os.name == "nt" else "ptq")


def install(python: Path, *words: object, folder: Path) -> None:
    """Install by this environment's pip, without a download."""
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index")
    run(*pip, *words, folder=folder)


def test_a_wheel_has_every_file_and_no_other(checkout: Path, wheel: Path) -> None:
    expected = files_in(checkout / "ptq_cli", "ptq_cli") | files_in(checkout / "configs", "ptq_cli/configs")
    assert files_of(wheel) == expected


@pytest.mark.nightly
def test_an_sdist_makes_the_same_wheel(checkout: Path, wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(build("sdist", checkout, tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.glob("ptq_cli-*")
    assert files_of(build("wheel", source, tmp_path / "wheel")) == files_of(wheel)


def test_an_installed_wheel_has_its_command_and_its_presets(wheel: Path, tmp_path: Path) -> None:
    python, ptq = environment_in(tmp_path / "environment")
    install(python, wheel, folder=tmp_path)
    assert "--preset" in run(ptq, "export", "--help", folder=tmp_path)
    presets = Path(run(python, "-c", FROM_HERE, folder=tmp_path))
    assert presets.is_relative_to((tmp_path / "environment").resolve())
    assert presets.parts[-3:] == ("ptq_cli", "configs", "presets")


@pytest.mark.nightly
def test_an_editable_installation_reads_the_presets_of_the_checkout(checkout: Path, tmp_path: Path) -> None:
    python, _ = environment_in(tmp_path / "environment")
    install(python, "--no-build-isolation", "--editable", checkout, folder=tmp_path)
    assert Path(run(python, "-c", FROM_HERE, folder=tmp_path)) == checkout / "configs" / "presets"


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_a_newcomer_gets_a_gated_model_of_each_sample() -> None:
    """This one downloads: it builds both files, and tries them in empty environments."""
    said = run(sys.executable, "-m", "tools.try_release", folder=ROOT)
    assert [said.count(f"  {name}: ") for name in COMMANDS] == [2, *[1] * (len(COMMANDS) - 1)]
    assert "mypy --strict script.py" in said
