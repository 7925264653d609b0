"""``runtime.device``: what is missing is said before any work; what a GPU counts is what the host counts."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptq_cli.collectors import torch_collectors
from ptq_cli.collectors.calibration_file import load_calibration, statistics_digest
from ptq_cli.runtime.session import Session, failed_run
from tests.devices import require_or_skip, use_the_host_as_cuda

CALIBRATE = "calibrate model.onnx --data calib.npz --set data.batch_size=5"
QUANTIZE = "quantize model.onnx --data calib.npz --eval-data eval.npz --set run.evaluate=true"
FILES = ("calibration.safetensors", "model.float.onnx")


@pytest.fixture
def host_as_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    use_the_host_as_cuda(monkeypatch)


@pytest.fixture(params=["stand-in", pytest.param("gpu", marks=pytest.mark.gpu)])
def cuda(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """``cuda``, which is a GPU, or the host in its place."""
    if request.param == "gpu":
        return require_or_skip("cuda")
    use_the_host_as_cuda(monkeypatch)
    return "cuda"


@pytest.fixture
def without_cuda() -> None:
    """This machine's own packages; where they have CUDA, there is nothing to refuse."""
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has CUDA")


def digest(run: Path) -> str:
    return statistics_digest(load_calibration(run / "calibration.safetensors").statistics)


@pytest.mark.parametrize("words", [f"{CALIBRATE} --restart", QUANTIZE], ids=["calibrate", "quantize"])
def test_packages_without_cuda_are_refused_before_any_work(folder, refuse, without_cuda, words):
    (folder / "ptq-run/calibration.partial.safetensors").write_bytes(b"kept")
    says = "'cuda:7' needs ONNX Runtime's CUDAExecutionProvider, and onnxruntime "
    words += " --set runtime.device=cuda:7"
    refuse(words, "PTQ-RUNTIME-003", says, hint="pip install onnxruntime-gpu")


def test_a_recipe_names_the_device_too(folder: Path, refuse: Any, ptq: Any, without_cuda: None) -> None:
    (folder / "ptq.toml").write_text("[runtime]\ndevice = 'cuda:1'\n")

    refuse(CALIBRATE, "PTQ-RUNTIME-003", "'cuda:1' needs ONNX Runtime's CUDAExecutionProvider")
    assert ptq(f"{CALIBRATE} --set runtime.device=cpu --run other").status == 0


def test_the_host_is_the_default(folder: Path, ptq: Any) -> None:
    assert ptq(f"{CALIBRATE} --run one").status == 0
    stored = load_calibration(folder / "one/calibration.safetensors").provenance.settings
    assert stored["runtime.device"] == "'cpu'"


def test_the_statistics_are_the_hosts_own_to_the_last_bit(folder, ptq, host_as_cuda, monkeypatch):
    counted = []
    count_values = torch_collectors.count_values
    monkeypatch.setattr(
        torch_collectors,
        "count_values",
        lambda tensor, *rest: (counted.append(tensor.numel()), count_values(tensor, *rest)),
    )
    for device in ("cpu", "cuda", "cuda:1"):
        assert ptq(f"{CALIBRATE} --set runtime.device={device} --run {device[-1]}").status == 0

    assert digest(folder / "a") == digest(folder / "u") == digest(folder / "1")
    found = load_calibration(folder / "u" / FILES[0]).statistics
    assert 2 * sum(item.count for name, item in found.items() if name != "x") == sum(counted)
    # Which of the GPUs it was stands in the recipe alone.
    assert (folder / "a" / FILES[0]).read_bytes() == (folder / "1" / FILES[0]).read_bytes()
    assert (folder / "a" / FILES[0]).read_bytes() != (folder / "u" / FILES[0]).read_bytes()


def cuda_count() -> int:
    import torch

    return torch.cuda.device_count()


def test_shards_of_a_gpu_and_of_the_host_do_not_merge(folder: Path, ptq: Any, refuse: Any, cuda: str) -> None:
    assert ptq(f"{CALIBRATE} --set runtime.device={cuda} --shard 1/2 --run run-1").status == 0
    assert ptq(f"{CALIBRATE} --shard 2/2 --run run-2").status == 0

    refuse(
        "merge run-1 run-2 --run all",
        "PTQ-MERGE-001",
        "'runtime.device' is 'cuda' in the first and 'cpu' in the second",
    )


STOPS = """\
from pathlib import Path

import numpy as np

def batches():
    for number in range(6):
        if number == 4 and not Path("go").read_text():
            raise RuntimeError("ended")
        yield {"x": np.random.default_rng(number).normal(size=(2, 3, 8, 8)).astype(np.float32)}
"""


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_checkpoint_of_a_gpu_is_continued_on_a_gpu_alone(folder, ptq, cuda, device):
    (folder / "stops.py").write_text(STOPS)
    (folder / "go").write_text("")
    words = "calibrate model.onnx --data stops.py:batches --set data.batch_size=2 --recover none"
    assert ptq(f"{words} --set runtime.device={cuda} --set runtime.checkpoint_every=0 --run one").status == 2
    (folder / "go").write_text("yes")
    assert ptq(f"{words} --set runtime.device={device} --run whole").status == 0

    outcome = ptq(f"{words} --set runtime.device={device} --run one")

    assert outcome.status == 0
    said = (
        "continuing an earlier" if device == "cuda" else "starting again: 'runtime.device' has changed since"
    )
    assert said in outcome.err
    assert (folder / "one" / FILES[0]).read_bytes() == (folder / "whole" / FILES[0]).read_bytes()


def test_what_was_calibrated_on_a_gpu_is_exported_and_evaluated_without(folder, ptq, monkeypatch):
    with monkeypatch.context() as patch:
        use_the_host_as_cuda(patch)
        assert ptq(f"{CALIBRATE} --set runtime.device=cuda:1").status == 0
    (folder / "ptq.toml").write_text("[runtime]\ndevice = 'cuda'\n")

    assert ptq("export").status == 0
    outcome = ptq("evaluate --eval-data eval.npz --json")

    assert outcome.status == 0
    assert "the float model runs on the CPU: 'cuda' needs " in outcome.err
    assert "cuda" not in json.loads(outcome.out)["versions"]
    assert json.loads(outcome.out)["calibration"]["samples"] == 12
    (folder / "ptq.toml").write_text("[runtime]\ndevice = 'cpu'\n")
    assert ptq("export").status == 0, "another device is no reason to calibrate again"


def test_the_float_model_is_evaluated_on_the_gpu_and_the_report_says_so(folder, ptq, cuda):
    words = f"evaluate --eval-data eval.npz --json --set runtime.device={cuda}"
    host, device = (json.loads(ptq(text).out) for text in (words.partition(" --set")[0], words))

    assert "cuda" not in host["versions"]
    assert device["versions"]["cuda"].endswith(" (float model)")
    sqnr = [
        next(m["quantized_value"] for m in found["metrics"] if m["name"] == "sqnr_db")
        for found in (host, device)
    ]
    assert sqnr[1] == pytest.approx(sqnr[0], rel=1e-3)


@pytest.fixture
def memory_for(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """Let the memory of a device hold so many samples; return the sizes of runs, which come to be."""

    def hold(most: int) -> list[int]:
        sizes: list[int] = []
        run_there = Session._run_there

        def run(session: Session, inputs: Any, binding: Any) -> None:
            if len(inputs["x"]) > most:
                raise failed_run(RuntimeError("BFCArena: Failed to allocate memory for 8 bytes"))
            sizes.append(len(inputs["x"]))
            run_there(session, inputs, binding)

        monkeypatch.setattr(Session, "_run_there", run)
        return sizes

    return hold


def test_a_piece_that_the_memory_does_not_hold_is_made_smaller(folder, ptq, host_as_cuda, memory_for):
    assert ptq(f"{CALIBRATE} --run whole --set runtime.device=cuda").status == 0
    sizes = memory_for(2)

    assert ptq(f"{CALIBRATE} --run parts --set runtime.device=cuda").status == 0

    assert digest(folder / "parts") == digest(folder / "whole")
    # The device is tried with 2 values, and 1 and 2 samples are looked at; what one sample takes is asked for
    # batches of 5 and of 2; then 12 samples are run.
    assert sum(sizes) == 2 + (1 + 2) + 2 * 1 + 12 and max(sizes) == 2


def test_a_sample_that_the_memory_does_not_hold_is_an_error(
    folder, ptq, host_as_cuda, memory_for, monkeypatch
):
    memory_for(0)
    monkeypatch.setattr("ptq_cli.pipeline.run_calibrate.require_device", lambda device: None)

    outcome = ptq(f"{CALIBRATE} --run parts --set runtime.device=cuda")

    assert outcome.status == 2 and not (folder / "parts").exists()
    assert "error PTQ-RUNTIME-001: ONNX Runtime failed on a batch: BFCArena: Failed to alloc" in outcome.err


def test_kernels_that_cannot_run_are_an_error_with_a_code(folder, ptq, host_as_cuda, monkeypatch):
    monkeypatch.setattr("ptq_cli.runtime.cuda.has_kernel_compiler", lambda: True)

    outcome = ptq(f"{CALIBRATE} --run parts --set runtime.device=cuda:1")

    assert outcome.status == 2 and not (folder / "parts").exists()
    assert "error PTQ-RUNTIME-003: the kernels of the extra 'cuda' cannot run on 'cuda:1': " in outcome.err
    assert "hint: uninstall numba-cuda, and PyTorch counts; or install numba-cuda[cu13]" in outcome.err


def test_nan_is_found_with_tensor_and_sample(folder: Path, ptq: Any, cuda: str) -> None:
    x = np.load(folder / "calib.npz")["x"]
    x[7] = 3e38
    np.save(folder / "huge.npy", x)
    words = "calibrate model.onnx --data huge.npy --set data.batch_size=5 --run one"

    host, device = ptq(words), ptq(f"{words} --set runtime.device={cuda}")

    assert device.status == host.status == 2
    assert "error PTQ-CALIB-001: tensor 'relu' is " in device.err
    assert re.search(r"at \[2, \d, \d, \d\] for sample 'huge\.npy\[7\]'", device.err)
    assert not (folder / "one").exists()


def test_a_limit_of_memory_is_that_of_the_host(folder: Path, ptq: Any, cuda: str) -> None:
    outcome = ptq(f"{CALIBRATE} --set runtime.device={cuda} --set runtime.max_memory=64GiB --run one")

    assert outcome.status == 0
    assert "note: below 68.7 GB of the host's memory: about " in outcome.err
    assert f"tensors stay on {cuda}" in outcome.err
    assert ptq(f"{CALIBRATE} --set runtime.device={cuda} --run two").status == 0
    assert digest(folder / "one") == digest(folder / "two")


def test_a_limit_that_the_host_exceeds_is_refused(folder: Path, ptq: Any, cuda: str) -> None:
    outcome = ptq(f"{CALIBRATE} --set runtime.device={cuda} --set runtime.max_memory=20MiB --run one")

    assert outcome.status == 2
    assert "error PTQ-RUNTIME-002: 21 MB of the host's memory is not enough" in outcome.err
    assert "hint: --set runtime.max_memory=" in outcome.err
    assert not (folder / "one").exists()


def test_without_it_no_torch_is_imported(folder: Path) -> None:
    script = (
        "import sys; from ptq_cli.cli.main import run; "
        f"assert run({CALIBRATE.split()!r}) == 0; assert 'torch' not in sys.modules"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
def test_runs_on_a_gpu_have_the_same_bytes(folder: Path, ptq: Any) -> None:
    device = require_or_skip("cuda")
    runs = []
    for number in range(3):
        assert ptq(f"{CALIBRATE} --set runtime.device={device} --run run-{number}").status == 0
        runs.append((folder / f"run-{number}" / FILES[0]).read_bytes())

    assert runs[0] == runs[1] == runs[2]


@pytest.mark.gpu
def test_each_rank_takes_a_gpu(folder: Path, real_ptq: Callable[..., Any]) -> None:
    require_or_skip("cuda")
    count = cuda_count()
    if count < 2:
        pytest.skip(f"{count} GPU is no use for two processes")
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "ptq_cli", "--"]
    words = [*CALIBRATE.split(), "--set", "runtime.device=cuda", "--run"]

    done = subprocess.run([*launch, *words, "all"], cwd=folder, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert real_ptq(*words, "one", cwd=folder).returncode == 0
    assert (folder / "all" / FILES[0]).read_bytes() == (folder / "one" / FILES[0]).read_bytes()
