import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ptq_cli.cli.main import run
from tests.proposed_commands import require_proposals
from tests.torch_needed import HAS_TORCH
from tools.pages.sample_folders import copy_sample

if HAS_TORCH:
    import torch

    torch.set_num_threads(1)

MakeSample = Callable[[str], Path]
RunShell = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def make_sample(tmp_path: Path) -> MakeSample:
    """Copies a sample model with few of its data, so that what the documentation says runs in seconds."""

    def make(name: str) -> Path:
        copy_sample(name, tmp_path / name)
        return tmp_path / name

    return make


def shortened(words: list[str]) -> list[str]:
    """Words of a command that measures for a moment only, unless they say how long."""
    is_long = words[0] == "bench" and not {"--seconds", "--runs", "--operators"} & set(words)
    return [*words, "--seconds", "0.2"] if is_long else words


@pytest.fixture
def ptq(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> RunShell:
    """Runs a line that calls ``ptq`` in this process, which spares its start; returns what ``shell`` does."""

    def call(command: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
        program, *words = shlex.split(command)
        assert program == "ptq", command
        capfd.readouterr()
        with monkeypatch.context() as patch:
            patch.chdir(folder)
            for name, value in variables.items():
                patch.setenv(name, value)
            status = run(shortened(words))
        said = capfd.readouterr()
        require_proposals(said.out, said.err)
        return subprocess.CompletedProcess(command, status, said.out + said.err)

    return call


@pytest.fixture
def shell() -> RunShell:
    """Runs a command line of bash with ``ptq`` on its path; stdout and stderr come as one text."""
    scripts = str(Path(sys.executable).parent)
    path = f"{scripts}{os.pathsep}{os.environ['PATH']}"

    def start(command: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
        # PyTorch's threads spin while they wait, which costs more than it gains beside other tests.
        environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", **variables}
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=environment,
            check=False,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        require_proposals(done.stdout)
        return done

    return start
