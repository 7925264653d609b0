"""Processors that this machine can imitate, and what sets them up: packages alone, without root's rights.

qemu-user and the Python of aarch64 come from Debian, its wheels by pip, and WebAssembly by npm, from where
this machine gets its own packages. apt has folders of its own for that, so that the system's are left alone.
All of it lies in one folder; a part of it is whole, or is not there at all.
"""

import getpass
import importlib.metadata
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.processors.page import missing_programs

# Of Debian. The qemu of the one before, 7.2, crashes when Python imports numpy.
SUITE = "trixie"
PYTHON = "3.13"  # The Python of that suite
WEB = "onnxruntime-web@1.30.0"
PLATFORMS = (
    "manylinux_2_35_aarch64",
    "manylinux_2_28_aarch64",
    "manylinux_2_27_aarch64",
    "manylinux2014_aarch64",
)
WHEELS = ("onnxruntime", "numpy")  # Those that aarch64 gets in the versions that are installed here
MINUTES, SHOWN = 60, 2000  # How long cases may take, and how many characters of an error are shown
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


class UnavailableError(Exception):
    """A processor cannot be set up here."""


class FailedError(Exception):
    """A processor did not run the cases to their end."""


@dataclass(frozen=True)
class Processor:
    """A processor to run cases on.

    Attributes:
        title: what its integer kernels can use.
        emulator: what imitates it: none, x86_64, aarch64, wasm or page.
        cpu: its name for qemu.
    """

    title: str
    emulator: str
    cpu: str = ""


PROCESSORS = {
    "here": Processor(f"this machine, {platform.machine()}", "none"),
    "haswell": Processor("x86-64, AVX2 without VNNI", "x86_64", "Haswell-noTSX"),
    "milan": Processor("x86-64, AVX2 without VNNI (EPYC)", "x86_64", "EPYC-Milan"),
    "sandybridge": Processor("x86-64, AVX", "x86_64", "SandyBridge"),
    "nehalem": Processor("x86-64, SSE4.2", "x86_64", "Nehalem"),
    "cortex-a72": Processor("aarch64, NEON", "aarch64", "cortex-a72"),
    "neoverse-n1": Processor("aarch64, dot products", "aarch64", "neoverse-n1"),
    # With SME, too, a DynamicQuantizeMatMul of ONNX Runtime 1.31 rounds its activations otherwise.
    "i8mm": Processor("aarch64, int8 matrix products", "aarch64", "max,sme=off"),
    "wasm": Processor("WebAssembly, node", "wasm"),
    "chromium": Processor("WebAssembly, headless Chromium", "page"),
}


def run_cases(name: str, cases: Path, cache: Path, answer: Path) -> None:
    """Run a folder of cases on a processor.

    Args:
        name: of the processor.
        cases: the folder that ``ptq verify --pack`` wrote.
        cache: where emulators are set up.
        answer: the file that gets the answer.

    Raises:
        UnavailableError: the processor cannot be set up.
        FailedError: it does not answer; what it says of a single case is in the answer.
    """
    processor = PROCESSORS[name]
    words = COMMANDS[processor.emulator](processor.cpu, cases, cache)
    emulated = ["--emulated"] if processor.cpu else []
    answer.unlink(missing_ok=True)
    try:
        done = subprocess.run(
            [*words, "--repeats", "0", "--name", name, *emulated, "-o", str(answer)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60 * MINUTES,
        )
    except subprocess.TimeoutExpired as error:
        raise FailedError(f"no answer within {MINUTES} minutes") from error
    if not answer.is_file():
        raise FailedError(f"exit status {done.returncode}\n{done.stderr[-SHOWN:]}")


def _native(_cpu: str, cases: Path, _cache: Path) -> list[str]:
    return [sys.executable, "-E", f"{cases}/run.py"]


def x86_64_words(cpu: str, cache: Path) -> list[str]:
    """Return the words before a command that run it on another processor of this architecture."""
    return [f"{_qemu(cache)}/qemu-x86_64", "-cpu", cpu]


def x86_64_python(cpu: str, cache: Path) -> list[str]:
    """Return the words that run this machine's own Python on another processor."""
    return [*x86_64_words(cpu, cache), sys.executable]


def _x86_64(cpu: str, cases: Path, cache: Path) -> list[str]:
    return [*x86_64_python(cpu, cache), "-E", f"{cases}/run.py"]


def aarch64_python(cpu: str, cache: Path, packages: str = "") -> list[str]:
    """Return the words that run a Python of aarch64, which also imports what a folder has for it."""
    qemu, root = _qemu(cache), whole(cache / f"aarch64-{_versions()}", _make_aarch64)
    words = [f"{qemu}/qemu-aarch64", "-cpu", cpu, "-L", str(root)]
    words += ["-E", f"PYTHONHOME={root}/usr", "-E", f"PYTHONPATH={root}/wheels:{packages}"]
    return [*words, f"{root}/usr/bin/python{PYTHON}"]


def _aarch64(cpu: str, cases: Path, cache: Path) -> list[str]:
    return [*aarch64_python(cpu, cache), f"{cases}/run.py"]


def _wasm(_cpu: str, cases: Path, cache: Path) -> list[str]:
    """Return what runs node; a script imports what is installed in its own folder."""
    _install_web(cases, cache)
    return [_program("node"), f"{cases}/run.mjs"]


def _page(_cpu: str, cases: Path, cache: Path) -> list[str]:
    if missing := missing_programs():
        raise UnavailableError(missing)
    _install_web(cases, cache)
    return [sys.executable, "-m", "tools.processors.page", str(cases)]


def _install_web(cases: Path, cache: Path) -> None:
    installed = web_modules(cache)
    (cases / "node_modules").unlink(missing_ok=True)
    (cases / "node_modules").symlink_to(installed, target_is_directory=True)


def web_modules(cache: Path) -> Path:
    """Return the ``node_modules`` that hold onnxruntime-web.

    Raises:
        UnavailableError: it cannot be installed.
    """
    return (whole(cache / WEB, _make_wasm) / "node_modules").absolute()


COMMANDS: dict[str, Callable[[str, Path, Path], list[str]]] = {
    "none": _native,
    "x86_64": _x86_64,
    "aarch64": _aarch64,
    "wasm": _wasm,
    "page": _page,
}


def _qemu(cache: Path) -> Path:
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise UnavailableError(
            f"it needs Linux on x86-64, and this is {sys.platform} on {platform.machine()}"
        )
    return whole(cache / f"qemu-{SUITE}", _make_qemu)


def _versions() -> str:
    return "-".join(importlib.metadata.version(name) for name in WHEELS)


def whole(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return a folder that was made once; one that was begun is made anew."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as begun:
            part = Path(begun) / "part"
            part.mkdir()
            make(part)
            try:
                part.rename(folder)
            except OSError:
                if not folder.exists():  # Another process was faster.
                    raise
    return folder


def _make_qemu(folder: Path) -> None:
    """Take the two programs that are needed out of the package, which has forty."""
    with tempfile.TemporaryDirectory() as packages:
        found = _packages(Path(packages), "amd64", ["qemu-user"])
        package = next(path for path in found if path.name.startswith("qemu-user_"))
        content = Path(packages) / "content.tar"
        with content.open("wb") as file:
            subprocess.run([_program("dpkg-deb"), "--fsys-tarfile", str(package)], stdout=file, check=True)
        with tarfile.open(content) as archive:
            for name in ("qemu-x86_64", "qemu-aarch64"):
                member = archive.getmember(f"./usr/bin/{name}")
                member.name = name
                archive.extract(member, folder, filter="data")


def _make_aarch64(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as packages:
        for package in _packages(Path(packages), "arm64", [f"python{PYTHON}", "libstdc++6", "libgomp1"]):
            _step("dpkg-deb", "-x", str(package), str(folder))
    # Where the loader is looked for; a package of links, which is not needed otherwise, would make it.
    (folder / "lib").symlink_to("usr/lib")
    install_aarch64(folder / "wheels", WHEELS)


def install_aarch64(folder: Path, names: Sequence[str]) -> None:
    """Install packages for aarch64 in the versions that are installed here."""
    wheels = [f"{name}=={importlib.metadata.version(name)}" for name in names]
    places = [word for name in PLATFORMS for word in ("--platform", name)]
    pip = ["-m", "pip", "install", "--quiet", "--no-compile", "--only-binary", ":all:"]
    _step(sys.executable, *pip, *places, "--python-version", PYTHON, "--target", str(folder), *wheels)


def _make_wasm(folder: Path) -> None:
    _program("node")
    _step("npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(folder), WEB)


def _packages(folder: Path, architecture: str, names: Sequence[str]) -> list[Path]:
    """Download packages of Debian, and those that they need."""
    for name in ("lists", "state", "cache"):
        (folder / name).mkdir()
    (folder / "status").touch()
    (folder / "sources.list").write_text(f"deb {_site()} {SUITE} main\n", encoding="utf-8")
    settings = {
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Sandbox::User": getpass.getuser(),
        "Debug::NoLocking": "1",
        "Dir::Cache": f"{folder}/cache",
        "Dir::Etc::SourceList": f"{folder}/sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::Etc::Trusted": KEYRING,
        "Dir::State": f"{folder}/state",
        "Dir::State::Lists": f"{folder}/lists",
        "Dir::State::status": f"{folder}/status",
    }
    words = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    _step("apt-get", *words, "update")
    _step("apt-get", *words, "install", "--yes", "--no-install-recommends", "--download-only", *names)
    return sorted((folder / "cache" / "archives").glob("*.deb"))


def _site() -> str:
    """Return where this system gets its Debian packages."""
    try:
        system = platform.freedesktop_os_release()
    except OSError as error:
        raise UnavailableError("it needs Debian's packages, and this system has no os-release") from error
    if system["ID"] != "debian":
        raise UnavailableError(f"it needs Debian's packages, and this is {system['NAME']}")
    release = system.get("VERSION_CODENAME", "sid")
    listed = _step("apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)", "Created-By: Packages")
    sites = [site for found, site in map(str.split, listed.splitlines()) if found == release]
    if not sites:
        raise UnavailableError(f"apt has no source of {release}, whose site could be asked for {SUITE}")
    return sites[0]


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise UnavailableError(f"it needs {name}, which is not installed")
    return found


def _step(program: str, *words: str) -> str:
    """Run a program that sets something up, and return what it prints."""
    done = subprocess.run([_program(program), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()] or ["it printed nothing"]
        raise UnavailableError(f"{Path(program).name} ended with {done.returncode}: {said[-1]}")
    return done.stdout
