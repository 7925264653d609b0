"""A tiny model with data and a finished run in a folder of its own, and ways to call ``ptq`` on it."""

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import numpy as np
import onnx
import pytest

from ptq_cli.cli.commands.recipe import JSON_COMMANDS, document_type
from ptq_cli.cli.main import run
from ptq_cli.collectors.calibration_file import load_calibration
from ptq_cli.core.documents import documents_schema
from tests.graphs import parsed
from tests.made_once import made_once
from tests.proposed_commands import require_proposals
from tests.torch_needed import HAS_TORCH

if HAS_TORCH:
    import torch

    torch.set_num_threads(1)

SAMPLES = Path(__file__).parents[2] / "sample_models"
CLASSES = 5
UNSHARED = shutil.ignore_patterns("ptq-run", "__pycache__")
# What is said without torch, which writes such models for the tests, too.
# What checkpoints, torchmetrics and quantizers in PyTorch end with where it is not installed.
NO_TORCH = re.compile(r"No module named 'torch|model '\S+\.pth?' does not exist")
PROGRESS = re.compile(
    r".* …|(calibrate|drift|evaluate|generate|recover): [0-9]+ (of [0-9]+ )?(samples|layers)"
)

ARCHITECTURE = """\
import torch


class Net(torch.nn.Module):
    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, channels, 3)
        self.norm = torch.nn.BatchNorm2d(channels)
        self.fc = torch.nn.Linear(channels, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


def build() -> torch.nn.Module:
    return Net()
"""

TINY = f"""(float[batch,3,8,8] x) => (float[batch,{CLASSES}] scores) {{
    [conv] conv = Conv(x, "conv.weight", "conv.bias")
    [relu] relu = Relu(conv)
    [pool] pool = GlobalAveragePool(relu)
    [flatten] flat = Flatten(pool)
    [fc] scores = Gemm<transB = 1>(flat, "fc.weight", "fc.bias") }}"""


@dataclass(frozen=True)
class Outcome:
    """What a command left: exit status, stdout, and stderr without the lines that tell of progress."""

    status: int
    out: str
    err: str


Ptq = Callable[..., Outcome]
Refuse = Callable[..., None]


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, with its content; caches of Python are nobody's output."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def make_onnx(weights: Mapping[str, np.ndarray], opset: int = 20) -> onnx.ModelProto:
    """Conv, ReLU, pooling and Gemm, as ONNX that no exporter wrote."""
    return parsed(TINY, weights, opset=opset, ir_version=10)


def make_weights(seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    shapes = {
        "conv.weight": (8, 3, 3, 3),
        "conv.bias": (8,),
        "fc.weight": (CLASSES, 8),
        "fc.bias": (CLASSES,),
    }
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def make_arrays(count: int, seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    x = random.standard_normal((count, 3, 8, 8)).astype(np.float32)
    return {"x": x, "label": random.integers(0, CLASSES, count)}


def untimed(words: list[str]) -> list[str]:
    """Words of a command that measures no latency unless they ask for it."""
    is_timed = bool(words) and words[0] in ("quantize", "evaluate", "tune")
    return (
        [*words, "--set", "evaluation.latency=false"]
        if is_timed and not {"evaluation.latency=true", "--help"} & set(words)
        else words
    )


@cache
def schema_of(name: str) -> jsonschema.Draft202012Validator:
    """The schema of what a command prints with ``--json``, without keys that it does not describe."""
    schema = json.loads(
        documents_schema(name, {name: list(map(document_type, JSON_COMMANDS[name]))}, strict=True)
    )
    return jsonschema.Draft202012Validator({**schema, **schema["$defs"].pop(name)})


def require_described(words: list[str], document: Any) -> None:
    """Fail if a document is not what the schema of its command describes."""
    name = " ".join(words[:2]) if " ".join(words[:2]) in JSON_COMMANDS else words[0]
    schema_of(name).validate(document)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models, data and a finished run; tests work on copies."""
    return made_once(tmp_path_factory, "tiny", make_template)


def make_template(folder: Path) -> None:
    """Write a tiny model as ONNX and as PyTorch, data, and a finished run."""
    folder.mkdir()
    onnx.save(make_onnx(make_weights()), folder / "model.onnx")
    (folder / "model.py").write_text(ARCHITECTURE)
    if HAS_TORCH:
        torch.manual_seed(0)
        names: dict[str, object] = {}
        exec(ARCHITECTURE, names)
        module = names["build"]()  # type: ignore[operator]
        torch.save(module.state_dict(), folder / "model.pt")
    np.savez(folder / "calib.npz", **make_arrays(12, seed=1))
    np.savez(folder / "eval.npz", **make_arrays(20, seed=2))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        words = "quantize model.onnx --data calib.npz --eval-data eval.npz --set run.evaluate=true"
        words += " --set data.batch_size=4"
        words += " --set evaluation.latency=false"
        assert run(words.split()) == 0


@pytest.fixture
def folder(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the template, which is the current folder."""
    copy = tmp_path / "tiny"
    shutil.copytree(template, copy)
    monkeypatch.chdir(copy)
    return copy


@pytest.fixture
def anew(template: Path, folder: Path) -> Callable[[], None]:
    """Make the folder what it was at first, for the next case of a test."""

    def restore() -> None:
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        shutil.copytree(template, folder, dirs_exist_ok=True)

    return restore


@pytest.fixture
def ptq(capfd: pytest.CaptureFixture[str]) -> Ptq:
    """Call ``ptq`` in this process, in the current folder: one text of words, or the words themselves.

    Latencies are measured where a test says ``evaluation.latency=true`` alone: they take time. A document
    is compared with the schema of its command, and commands that are proposed must exist as they are printed.
    """

    def call(*words: str) -> Outcome:
        capfd.readouterr()
        given = untimed(shlex.split(words[0]) if len(words) == 1 else list(words))
        status = run(given)
        captured = capfd.readouterr()
        if not HAS_TORCH and NO_TORCH.search(captured.err):
            pytest.skip("of PyTorch")
        if "--json" in given and captured.out:
            require_described(given, json.loads(captured.out))
        require_proposals(captured.out, captured.err)
        said = [
            line for line in captured.err.splitlines(keepends=True) if not PROGRESS.fullmatch(line.rstrip())
        ]
        return Outcome(status, captured.out, "".join(said))

    return call


@pytest.fixture
def refuse(folder: Path, ptq: Ptq) -> Refuse:
    """Call ``ptq``, which must refuse: one line with the code, a hint, and nothing written or lost."""

    def check(words: str, code: str, *says: str, hint: str | None = None) -> None:
        before = snapshot(folder)
        outcome = ptq(words)
        assert outcome.status == 2, outcome
        assert outcome.out == ""
        lines = outcome.err.splitlines()
        assert lines[0].startswith(f"error {code}: "), outcome.err
        for text in says:
            assert text in lines[0]
        assert str(folder) not in lines[0], "a path is shown as it was typed"
        if hint is not None:
            assert lines[1].startswith("hint: ")
            assert hint in lines[1]
        assert len(lines) <= 2, outcome.err
        assert snapshot(folder) == before

    return check


@pytest.fixture
def without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "matplotlib" else find(name, *rest)
    )


def statistics_in(folder: Path, run: str = "ptq-run") -> dict[str, Any]:
    """What a run's calibration holds, by the tensor's name."""
    return dict(load_calibration(folder / run / "calibration.safetensors").statistics)


def operators(path: Path | str) -> list[str]:
    """The types of an ONNX file's nodes, in their order."""
    return [node.op_type for node in onnx.load(path).graph.node]


@pytest.fixture(scope="session")
def real_ptq() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Call ``ptq`` as a process of its own."""

    def call(*words: str, cwd: Path, **options: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ptq_cli", *words]
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
        require_proposals(done.stdout, done.stderr)
        return done  # type: ignore[no-any-return]

    return call


@contextmanager
def scripts_of(sample: Path, names: Sequence[str]) -> Iterator[SimpleNamespace]:
    """Modules of a sample's folder, by name; other samples have some of the same names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(sample))
        for name in names:
            patch.delitem(sys.modules, name, raising=False)
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
        for name in names:
            patch.delitem(sys.modules, name, raising=False)


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies of the sample models' folders, without what earlier runs left there."""
    target = tmp_path_factory.mktemp("samples")
    for name in ("cifar10_cnn", "spoken_digits_transformer"):
        shutil.copytree(SAMPLES / name, target / name, ignore=UNSHARED)
    return target


@pytest.fixture(scope="session")
def calibrated_cifar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory of the image sample, calibrated on all its data; for tests to copy, or to read.

    Turning its checkpoint into ONNX takes seconds. A test that is not about that takes ``model.float.onnx``.
    """
    pytest.importorskip("torch")

    def make(folder: Path) -> None:
        shutil.copytree(SAMPLES / "cifar10_cnn", folder, ignore=UNSHARED)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            assert run(["calibrate", "model.pt", "--method", "histogram", "--run", "calibrated"]) == 0

    return made_once(tmp_path_factory, "calibrated-cifar", make) / "calibrated"


@pytest.fixture
def cifar(samples: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The image sample's folder, which is the current one; its run directory is shared by the tests."""
    monkeypatch.chdir(samples / "cifar10_cnn")
    return samples / "cifar10_cnn"


@pytest.fixture
def digits(samples: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The speech sample's folder, which is the current one."""
    monkeypatch.chdir(samples / "spoken_digits_transformer")
    return samples / "spoken_digits_transformer"
